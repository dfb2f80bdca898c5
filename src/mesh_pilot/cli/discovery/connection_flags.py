"""Flags of ``mesh-pilot discovery`` about who connects: TLS, tokens, limits, webhooks. See ``discovery_flags``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from mesh_pilot.app.settings import Settings
from mesh_pilot.model.flags import FlagKind, flag, group

if TYPE_CHECKING:
    from mesh_pilot.consul.identity.authenticator import ConsulTokenSettings
    from mesh_pilot.kubernetes.apiserver import Access
    from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
    from mesh_pilot.kubernetes.identity.token_review import KubernetesTokenSettings
    from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettings
    from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings
    from mesh_pilot.net.rpc import CertificateFiles, Limits
    from mesh_pilot.ops.access.settings import AccessSettings
    from mesh_pilot.sources.base.contract import Registry

_mcp = partial(flag, section="Servers of configuration (MCP)")
_access = partial(flag, section="Who may use the web port and the API")
_certificates = partial(flag, section="Certificates")
_tokens = partial(flag, section="Tokens of callers")
_connections = partial(flag, section="Connections to the gRPC ports")
_webhooks = partial(flag, section="Webhooks of an API server")


def certificate_files(certificate: Path | None, key: Path | None, trusted: Path | None) -> CertificateFiles | None:
    """The files of one side of TLS; None where none is named."""
    from mesh_pilot.net.rpc.tls import CertificateFiles

    if not (certificate or key or trusted):
        return None
    return CertificateFiles(certificate=certificate, key=key, trusted=trusted)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class McpTlsFlags:
    """TLS to servers of configuration."""

    ca: Path | None = _mcp("--mcp-tls-ca", help="PEM file of the CA of those servers: connects with TLS.")
    certificate: Path | None = _mcp("--mcp-tls-cert", help="PEM file of our certificate there, for mutual TLS.")
    key: Path | None = _mcp("--mcp-tls-key", help="PEM file of its key.")

    def files(self) -> CertificateFiles | None:
        found = certificate_files(self.certificate, self.key, self.ca)
        if found and (not self.ca or bool(self.certificate) != bool(self.key)):
            raise click.UsageError(
                "TLS to servers of configuration needs --mcp-tls-ca, and for a certificate of ours "
                "both of --mcp-tls-cert and --mcp-tls-key"
            )
        return found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TlsFlags:
    """The certificate of the secure gRPC port."""

    certificate: Path | None = _certificates(
        "--tls-cert", common=True, help="PEM file of the server's certificate.  [default: the CA signs one]"
    )
    key: Path | None = _certificates("--tls-key", help="PEM file of its key.")
    ca: Path | None = _certificates("--tls-ca", help="PEM file of a further CA of proxies.")

    def files(self) -> CertificateFiles | None:
        if bool(self.certificate) != bool(self.key):
            raise click.UsageError("a server's certificate needs both of --tls-cert and --tls-key")
        return certificate_files(self.certificate, self.key, self.ca)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AccessFlags:
    """Access to the web port and the API."""

    token_file: Path | None = _access(
        "--api-token-file",
        common=True,
        help="File with a line ROLE TOKEN NAME for each caller (docs/operating.md); may change.",
        doc="[File](operating.md#access) with a line `ROLE TOKEN NAME` for each caller; may change.",
    )
    people_file: Path | None = _access(
        "--api-people-file",
        help="YAML file of the OpenID Connect issuer and people's roles (docs/access.md); may change.",
        doc="YAML file of the OpenID Connect issuer and [people's roles](access.md); may change.",
    )
    certificate: Path | None = _access(
        "--api-tls-cert", help="PEM file of the certificate of --http-addr: serves HTTPS there."
    )
    key: Path | None = _access("--api-tls-key", help="PEM file of its key.")
    client_ca: Path | None = _access("--api-client-ca", help="PEM file of a CA of clients, for --api-token-file.")

    def settings(self) -> AccessSettings:
        if bool(self.certificate) != bool(self.key):
            raise click.UsageError("a certificate for --http-addr needs both of --api-tls-cert and --api-tls-key")
        if self.client_ca and not self.certificate:
            raise click.UsageError("--api-client-ca needs --api-tls-cert and --api-tls-key: certificates come over TLS")
        if self.client_ca and not self.token_file:
            raise click.UsageError("--api-client-ca needs --api-token-file, with lines such as: view certificate NAME")
        from mesh_pilot.ops.access.settings import AccessSettings

        return AccessSettings(
            token_file=self.token_file,
            people_file=self.people_file,
            tls=certificate_files(self.certificate, self.key, self.client_ca),
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ForeignTokenFlags:
    """Tokens that others made, by which callers say who they are."""

    jwt_rules: Path | None = _tokens(
        "--jwt-rules",
        help="YAML or JSON file of issuers whose JSON Web Tokens are believed.",
        doc="YAML or JSON file of issuers whose [JSON Web Tokens](authentication.md#json-web-tokens) are believed.",
    )
    kubernetes: bool = _tokens(
        "--accept-kubernetes-tokens",
        default=False,
        help="Believe tokens of service accounts; the API server reviews them.",
        doc="Believe tokens of [service accounts](authentication.md#kubernetes); the API server reviews them.",
    )
    kubeconfig: Path | None = _tokens(
        "--kubernetes-kubeconfig",
        help="How to reach it.  [default: as a pod, or as kubectl does]",
        doc="How to reach that API server, also for the Lease of `--leader-election`.",
    )
    audiences: tuple[str, ...] = _tokens(
        "--kubernetes-token-audience",
        default=("istio-ca",),
        repeats=True,
        help="Audience of those tokens; repeatable.",
    )
    consul: bool = _tokens(
        "--accept-consul-tokens",
        default=False,
        help="Believe ACL tokens with a service identity; our agent is asked about them.",
        doc="Believe [ACL tokens](authentication.md#consul) with a service identity.",
    )
    trust_namespaces: bool = _tokens(
        "--trust-consul-namespaces",
        default=False,
        help="Take the namespace from the service's metadata, which whoever may register it chooses.",
    )

    def settings(self, registries: tuple[Registry, ...], *, needs_kubeconfig: bool) -> ForeignTokenSettings:
        """``needs_kubeconfig``: something else reads the kubeconfig. Raises UsageError."""
        from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings

        if self.trust_namespaces and not self.consul:
            raise click.UsageError("--trust-consul-namespaces is about the tokens of --accept-consul-tokens")
        if self.kubeconfig and not self.kubernetes and not needs_kubeconfig:
            raise click.UsageError(
                "--kubernetes-kubeconfig needs --accept-kubernetes-tokens or --leader-election kubernetes"
            )
        return ForeignTokenSettings(
            jwt_rules=self.jwt_rules,
            kubernetes=self._of_kubernetes() if self.kubernetes else None,
            consul=self._of_consul(registries) if self.consul else None,
        )

    def _of_kubernetes(self) -> KubernetesTokenSettings:
        from mesh_pilot.kubernetes.identity.token_review import KubernetesTokenSettings

        return KubernetesTokenSettings(kubeconfig=self.kubeconfig, audiences=self.audiences)

    def _of_consul(self, registries: tuple[Registry, ...]) -> ConsulTokenSettings:
        """Raises UsageError."""
        from mesh_pilot.consul.identity.authenticator import ConsulTokenSettings
        from mesh_pilot.consul.source import ConsulRegistry

        datacenters = [r.datacenters[0] for r in registries if isinstance(r, ConsulRegistry)]
        if not datacenters:
            raise click.UsageError("--accept-consul-tokens needs an agent to ask: --consul-server-url")
        return ConsulTokenSettings(datacenter=datacenters[0], trust_namespaces=self.trust_namespaces)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConnectionFlags:
    """Connections to the gRPC ports: how many, and how long one lasts."""

    max_concurrent_streams: int = _connections(
        "--max-concurrent-streams",
        default=100,
        least=1,
        help="Streams on one connection; an Envoy needs one, a proxy in front many.",
        doc="Streams on [one connection](operating.md#hostile-and-broken-peers); an Envoy needs one, a proxy "
        "in front many.",
    )
    max_connections: int = _connections(
        "--max-connections",
        default=0,
        least=0,
        help="Connections to the gRPC ports, never more than open files allow. Stalled ones give way first, then the"
        " newest of whoever has more than half.",
        doc="Connections to the gRPC ports; at most, and with 0, five eighths of the limit on open files ([who "
        "gives way](operating.md#who-gives-way-at-a-limit)).",
    )
    max_handshakes: int = _connections(
        "--max-handshakes",
        default=1000,
        least=0,
        help="TLS handshakes at the same time; more wait.",
        doc="TLS handshakes at the same time; more wait, in order of arrival. 0: no limit.",
    )
    max_connection_age: float = _connections(
        "--max-connection-age",
        kind=FlagKind.DURATION,
        default=0.0,
        help="Close connections after this long, give or take a tenth: replicas even out (docs/replicas.md).",
        doc="Close connections after this long, give or take a tenth: [replicas even "
        "out](replicas.md#connection-age). 0: never.",
    )
    max_connection_age_grace: float = _connections(
        "--max-connection-age-grace",
        kind=FlagKind.DURATION,
        default=10.0,
        help="Time that streams of such a connection may take to end.",
    )

    def limits(self, requests_per_second: float) -> Limits:
        """``requests_per_second`` are the xDS streams that may begin (0: any number). Each may need a connection of its
        own, so at least as many connections and calls are admitted."""
        from mesh_pilot.net.rpc import SERVER_LIMITS

        return attrs.evolve(
            SERVER_LIMITS,
            connection_rate=requests_per_second and max(SERVER_LIMITS.connection_rate, requests_per_second),
            stream_rate=requests_per_second and max(SERVER_LIMITS.stream_rate, requests_per_second),
            max_concurrent_streams=self.max_concurrent_streams,
            max_connections=self.max_connections or math.inf,
            max_handshakes=self.max_handshakes or math.inf,
            max_connection_age_seconds=self.max_connection_age or math.inf,
            max_connection_age_grace_seconds=self.max_connection_age_grace,
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class InjectionFlags:
    """Injected sidecars."""

    template: Path | None = _webhooks(
        "--injection-template",
        help="YAML file with templates, selectors and values of injected sidecars.",
        doc="YAML file with [templates, selectors and values](kubernetes-config.md#settings) of injected "
        "sidecars; may change.",
    )
    image: str = _webhooks(
        "--injection-image", default="", help="Image with mesh-pilot and Envoy, for injected sidecars."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WebhookFlags:
    """The webhooks of an API server."""

    address: str | None = _webhooks(
        "--https-addr",
        kind=FlagKind.ADDRESS,
        common=True,
        help="Webhooks of an API server: validation and injection, as :15017.  [default: off]",
        doc="[Webhooks of an API server](kubernetes-config.md#webhooks): validation and injection, as `:15017`.",
    )
    dns_names: tuple[str, ...] = _webhooks(
        "--webhook-dns-names",
        kind=FlagKind.WORDS,
        default=(),
        adds_up=True,
        metavar="NAME,...",
        help="DNS names in their certificate.  [default: the Services istiod and mesh-pilot]",
    )
    injection: InjectionFlags = group(InjectionFlags)

    def is_on(self) -> bool:
        """Raises UsageError for a flag that has no effect without ``--https-addr``."""
        for name, value in (
            ("--webhook-dns-names", self.dns_names),
            ("--injection-template", self.injection.template),
            ("--injection-image", self.injection.image),
        ):
            if value and not self.address:
                raise click.UsageError(f"{name} needs --https-addr, such as :15017")
        return bool(self.address)

    def settings(
        self, mesh: Settings, cluster_id: str, access: Access | None, environment: Mapping[str, str]
    ) -> WebhookSettings:
        """``access``: the API server whose webhook configurations are ours."""
        from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings

        revision = mesh.revision or environment.get("REVISION", "")
        return WebhookSettings(
            address=self.address or "",
            dns_names=self.dns_names,
            injection=injection_settings(self.injection.image, mesh.namespace, revision, cluster_id, mesh.domain),
            injection_file=self.injection.template,
            revision=revision,
            access=access,
        )


def injection_settings(
    image: str, namespace: str, revision: str, cluster: str = "", domain: str = "cluster.local"
) -> InjectionSettings:
    """The settings of injection that flags give."""
    from mesh_pilot.kubernetes.webhooks.injection.configuration import DEFAULT_VALUES, InjectionSettings, merged_values

    given = {
        "istioNamespace": namespace,
        "multiCluster": {"clusterName": cluster},
        "proxy": {"image": image, "clusterDomain": domain},
    }
    values = merged_values(DEFAULT_VALUES, {"global": given, "revision": revision}, "values")
    return InjectionSettings(revision=revision, values=values)
