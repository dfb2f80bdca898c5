"""Admission: a workload is registered with a proven identity, that of the group, at an address of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mesh_pilot.app.registration.records import IDENTITY_ANNOTATION, RegisteredWorkload, entry_name
from mesh_pilot.config.yaml import Document, load
from mesh_pilot.mesh.proxy.agent_config import ANNOTATION, AUTO_REGISTER_GROUP
from mesh_pilot.model.config import ConfigKey, Origin
from mesh_pilot.model.net import plain_address
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.spiffe import SCHEME, Identity, parse_identity, qualified
from mesh_pilot.security.callers import TrustDomains, host_of, is_local
from mesh_pilot.world import World
from mesh_pilot.world.service_entries import is_auto_registered
from mesh_pilot.xds.messages import Code, StreamError

LOCALITY_LABEL = "istio-locality"
"""The label by which a workload may say its locality; it is none of its entry's."""

_NETWORK = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@attrs.frozen
class AdmissionRules:
    """The choices of an operator."""

    any_address: bool = False
    """Believe the address that a workload claims, though its connection comes from another one (NAT)."""
    trust_local: bool = False
    """Believe the address of a workload that connects from this machine."""


def admitted(
    proxy: Proxy, peer: str, world: World, domains: TrustDomains, rules: AdmissionRules
) -> RegisteredWorkload | None:
    """The workload to register; None if it does not ask for that. Raises StreamError, with the reason in one line."""
    group_name = proxy.text(AUTO_REGISTER_GROUP)
    if not group_name:
        return None
    who = f"auto-registration of {proxy.name} in WorkloadGroup {proxy.namespace}/{group_name}"
    identity = parse_identity(proxy.identity)
    if identity is None:
        raise _refused(f"{who} needs a proven identity: connect over TLS with a certificate or a token")
    if identity.trust_domain not in (domains.own, *domains.aliases) or identity.namespace != proxy.namespace:
        raise _refused(f"{who} is not for {identity}: it is for workloads of namespace {proxy.namespace} of this mesh")
    group = world.config.peek(ConfigKey("WorkloadGroup", proxy.namespace, group_name))
    if group is None:
        raise StreamError(Code.FAILED_PRECONDITION, f"{who} failed: there is no such WorkloadGroup here")
    account = group.spec.template.service_account if group.spec.template is not None else ""
    if account and account != identity.service_account:
        raise _refused(f"{who} is for service account {account}, and not for {identity}")
    address, network = proxy.ip_addresses[0], proxy.text("NETWORK")
    if network and not _NETWORK.fullmatch(network):
        raise _refused(f"{who}: NETWORK {network[:60]!r} is no name of a network")
    _check_address(who, proxy, peer, rules)
    workload = RegisteredWorkload(
        key=ConfigKey("WorkloadEntry", proxy.namespace, entry_name(group_name, address, network)),
        group=group_name,
        identity=str(identity),
        address=address,
        network=network,
        locality=str(proxy.locality),
        labels={key: value for key, value in proxy.labels.items() if key != LOCALITY_LABEL},
        is_checked=_has_probe(proxy),
    )
    _check_free(who, workload, identity, world, domains)
    return workload


def reported_entries(proxy: Proxy, world: World, domains: TrustDomains) -> Iterable[ConfigKey]:
    """The WorkloadEntries that somebody has written for a workload: at its address, and for its identity."""
    identity = parse_identity(proxy.identity)
    if identity is None or identity.trust_domain not in (domains.own, *domains.aliases):
        return
    addresses = set(map(plain_address, proxy.ip_addresses))
    for config in world.workload_entries(proxy.namespace):
        is_its_own = config.spec.service_account in ("", identity.service_account)
        if is_its_own and plain_address(config.spec.address) in addresses and not is_auto_registered(config):
            yield config.key


def _check_address(who: str, proxy: Proxy, peer: str, rules: AdmissionRules) -> None:
    address, host = proxy.ip_addresses[0], plain_address(host_of(peer))
    if rules.any_address or host == plain_address(address) or (rules.trust_local and is_local(peer)):
        return
    raise _refused(
        f"{who} at {address} comes from {host}: a workload can only register the address that it connects from "
        "(behind NAT: --auto-register-any-address)"
    )


def _check_free(
    who: str, workload: RegisteredWorkload, identity: Identity, world: World, domains: TrustDomains
) -> None:
    """The address must not be another's, as far as this replica knows now."""
    own = str(identity)
    for key, endpoints in world.endpoints_at.peek(workload.address) or ():
        service = world.services.peek(key)
        for endpoint in endpoints if service is not None else ():
            assert service is not None
            if endpoint.network and workload.network and endpoint.network != workload.network:
                continue
            if not service.declared_by_users:
                raise _refused(f"{who}: {workload.address} is an endpoint of {service.host} in {service.registry}")
            account = endpoint.service_account or own
            account = account if account.startswith(SCHEME) else qualified(account, domains.own)
            if account != own:
                raise _refused(f"{who}: {workload.address} is an endpoint of {service.host} for {account}")
    for config in world.auto_registered(workload.address):
        other = config.annotations.get(IDENTITY_ANNOTATION, "")
        if config.spec.network == workload.network and other != own:
            raise _refused(f"{who}: {workload.address} is registered for {other} as {config.namespace}/{config.name}")


def _has_probe(proxy: Proxy) -> bool:
    """True if the workload's own ProxyConfig has a probe, by which its agent will report."""
    annotations = proxy.metadata.get("ANNOTATIONS")
    annotation = annotations.get(ANNOTATION) if isinstance(annotations, Mapping) else None
    return any(_names_probe(given) for given in (proxy.metadata.get("PROXY_CONFIG"), annotation))


def _names_probe(given: Any) -> bool:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            document = next(load(given, Origin(ANNOTATION)), None)
            given = document.data if isinstance(document, Document) else None
    return isinstance(given, Mapping) and bool(given.get("readinessProbe"))


def _refused(text: str) -> StreamError:
    return StreamError(Code.PERMISSION_DENIED, text)
