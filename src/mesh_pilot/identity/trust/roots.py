"""The trusted roots as proxies and agents are sent them: the secret ``ROOTCA``, and Istio's ``ProxyConfig`` (PCDS).

As long as all roots are the mesh's own, Envoy verifies with all of them, as with istiod. Once there are foreign ones,
its SPIFFE validator does, in which the roots of a trust domain vouch for names of that domain only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set

from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import common_pb2, secret_pb2, tls_spiffe_validator_config_pb2
from google.protobuf import any_pb2

from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.engine.snapshots import Snapshot, snapshot_of
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.identity.trust.spiffe_bundles import joined_pem
from mesh_pilot.model.resource import PREFIX, PROXY_CONFIG, SECRET, TRUST_SECRET, Resource, make_resource

SPIFFE_VALIDATOR = "envoy.tls.cert_validator.spiffe"

ROOTS_NAME = "trust-bundle"
"""The name of the one ProxyConfig. Agents read its type only; istiod gives it none."""


def roots_secret(trust: TrustStore) -> Resource | None:
    """The secret ``ROOTCA``, by which proxies verify certificates of their peers in the mesh; None without a root."""
    if not trust.own().roots:
        return None
    message = secret_pb2.Secret(name=TRUST_SECRET, validation_context=validation_context(trust))
    return make_resource(TRUST_SECRET, SECRET, message.SerializeToString(deterministic=True))


def validation_context(trust: TrustStore) -> common_pb2.CertificateValidationContext:
    """The validation of peers in the mesh. The SPIFFE validator looks at no revocation list."""
    foreign = trust.foreign()
    context = common_pb2.CertificateValidationContext()
    if not foreign:
        own = trust.own()
        context.trusted_ca.CopyFrom(_inline(own.roots))
        if crls := trust.crls_for_proxies():
            context.crl.CopyFrom(_inline(crls))
            context.only_verify_leaf_cert_crl = True
        return context
    validator = tls_spiffe_validator_config_pb2.SPIFFECertValidatorConfig()
    own_domains = (trust.domains.own, *sorted(trust.domains.aliases))
    for name in dict.fromkeys((*own_domains, *foreign)):
        roots = trust.own().roots if name in own_domains else ()
        roots = tuple(dict.fromkeys((*roots, *(foreign[name].roots if name in foreign else ()))))
        if roots:
            validator.trust_domains.add(name=name, trust_bundle=_inline(roots))
    context.custom_validator_config.name = SPIFFE_VALIDATOR
    context.custom_validator_config.typed_config.CopyFrom(
        any_pb2.Any(
            type_url=PREFIX + validator.DESCRIPTOR.full_name,
            value=validator.SerializeToString(deterministic=True),
        )
    )
    return context


def agent_roots(trust: TrustStore) -> Resource:
    """All roots, own and foreign, as istiod sends them to agents: these tell no trust domains apart."""
    roots = sorted(root.decode() for root in trust.all().roots)
    return make_resource(ROOTS_NAME, PROXY_CONFIG, bytes(ProxyConfig(ca_certificates_pem=roots)))


def _inline(pems: tuple[bytes, ...]) -> base_pb2.DataSource:
    return base_pb2.DataSource(inline_bytes=joined_pem(pems))


class TrustSet:
    """A set with one resource made from the trust store; read as ``envoy.catalog.resource_sets.ResourceSet`` is.

    State: the last snapshot, None after a change; the readers to wake.
    """

    is_plan = True
    """A wildcard subscription gets it."""

    def __init__(self, trust: TrustStore, type_url: str, make: Callable[[TrustStore], Resource | None]) -> None:
        self.type_url = type_url
        self._trust = trust
        self._make = make
        self._snapshot: Snapshot | None = None
        self._wakers: dict[Hashable, Callable[[], None]] = {}
        trust.on_change(self._changed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {len(self._wakers)} readers>"

    def readers(self) -> tuple[Hashable, ...]:
        return tuple(self._wakers)

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            made = self._make(self._trust)
            self._snapshot = snapshot_of((made,) if made is not None else ())
        return self._snapshot

    def ask(self, names: Set[str]) -> Snapshot:
        """As ``snapshot``: what there is does not depend on the names."""
        return self.snapshot()

    def has_asked(self, names: Set[str]) -> bool:
        return True

    def get(self, name: str) -> Resource | None:
        return self.snapshot().entries.get(name)

    def attach(self, reader: Hashable, wake: Callable[[], None]) -> None:
        self._wakers[reader] = wake

    def detach(self, reader: Hashable) -> bool:
        self._wakers.pop(reader, None)
        return not self._wakers

    def _changed(self) -> None:
        self._snapshot = None
        for wake in [*self._wakers.values()]:
            wake()


class AgentRoots(TrustSet):
    """The set with ``agent_roots``, shared by all proxies."""

    def __init__(self, trust: TrustStore) -> None:
        super().__init__(trust, PROXY_CONFIG, agent_roots)


class ProxyRoots(TrustSet):
    """The set with ``roots_secret``, for agents of ours, which hand it to their Envoys."""

    def __init__(self, trust: TrustStore) -> None:
        super().__init__(trust, SECRET, roots_secret)
