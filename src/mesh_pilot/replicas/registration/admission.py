"""Admission: a workload is registered with a proven identity, that of the group, at its own address."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs

from mesh_pilot.base.reading import member
from mesh_pilot.identity.trust.callers import TrustDomains, host_of, is_local
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.mesh.proxy.agent_config import ANNOTATION, AUTO_REGISTER_GROUP, MAX_ANNOTATION
from mesh_pilot.model.config import ConfigKey, Origin
from mesh_pilot.model.net import plain_address
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import LOCALITY_LABEL, NOWHERE, Locality
from mesh_pilot.model.spiffe import SCHEME, Identity, parse_identity, qualified
from mesh_pilot.replicas.registration.records import IDENTITY_ANNOTATION, RegisteredWorkload, entry_name
from mesh_pilot.world import World
from mesh_pilot.world.service_entries import is_auto_registered
from mesh_pilot.xds.ads.messages import Code, StreamError

_NETWORK = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

MAX_TEXT = 16 * 1024
"""Characters of labels and locality: a record goes to all replicas, and Consul takes no more than 512 KiB."""
MAX_AT_ADDRESS = 20
"""Entries of one identity at one address. They differ by group or network, and a workload says its own network."""


@attrs.frozen
class AdmissionRules:
    """The choices of an operator."""

    any_address: bool = False
    """Believe the address that a workload claims, though its connection comes from another one (NAT)."""
    trust_local: bool = False
    """Believe the address of a workload that connects from this machine."""


def admitted(
    proxy: Proxy,
    peer: str,
    world: World,
    domains: TrustDomains,
    rules: AdmissionRules,
    joining: Callable[[str, str], Collection[ConfigKey]] = lambda identity, address: (),
) -> RegisteredWorkload | None:
    """The workload to register; None if it does not ask for that. Raises StreamError, with the reason in one line.

    ``joining`` gives the entries of an identity at an address whose workloads are connected: the World may not have
    them yet.
    """
    group_name = proxy.text(AUTO_REGISTER_GROUP)
    if not group_name:
        return None
    who = f"auto-registration of {proxy.name} in WorkloadGroup {proxy.namespace}/{group_name}"
    identity = parse_identity(proxy.identity)
    if identity is None:
        raise _refused(f"{who} needs a proven identity: connect over TLS with a certificate or a token")
    if identity.trust_domain not in domains or identity.namespace != proxy.namespace:
        raise _refused(f"{who} is not for {identity}: it is for workloads of namespace {proxy.namespace} of this mesh")
    identity = attrs.evolve(identity, trust_domain=domains.own)  # an alias is no other workload
    group = world.config.peek(ConfigKey("WorkloadGroup", proxy.namespace, group_name))
    if group is None:
        raise StreamError(Code.FAILED_PRECONDITION, f"{who} failed: there is no such WorkloadGroup here")
    account = group.spec.template.service_account if group.spec.template is not None else ""
    if account and account != identity.service_account:
        raise _refused(f"{who} is for service account {account}, and not for {identity}")
    address, network = proxy.ip_addresses[0], proxy.text("NETWORK")
    if network and not _NETWORK.fullmatch(network):
        raise _refused(f"{who}: NETWORK {network[:60]!r} is not a name of a network")
    _check_address(who, proxy, peer, rules)
    labels = {key: value for key, value in proxy.labels.items() if key != LOCALITY_LABEL}
    said = Locality.of_labels(proxy.labels)
    locality = str(said if said != NOWHERE else proxy.locality)
    if sum(map(len, (*labels.keys(), *labels.values(), locality))) > MAX_TEXT:
        raise _refused(f"{who}: its labels and locality have more than {MAX_TEXT:,} characters")
    workload = RegisteredWorkload(
        key=ConfigKey("WorkloadEntry", proxy.namespace, entry_name(group_name, address, network)),
        group=group_name,
        identity=str(identity),
        address=address,
        network=network,
        locality=locality,
        labels=labels,
        is_checked=_has_probe(proxy),
    )
    _check_free(who, workload, identity, world, domains, joining(str(identity), address))
    return workload


def reported_entries(
    proxy: Proxy, peer: str, world: World, domains: TrustDomains, rules: AdmissionRules
) -> Iterable[ConfigKey]:
    """The WorkloadEntries that somebody has written for a workload: at its address, and for its identity.

    Of the addresses that it claims only those count at which it may register.
    """
    identity = parse_identity(proxy.identity)
    if identity is None or identity.trust_domain not in domains:
        return
    addresses = {plain_address(claimed) for claimed in proxy.ip_addresses if _is_believed(claimed, peer, rules)}
    for address in sorted(addresses):
        for config in world.workload_entries(proxy.namespace, address):
            if config.spec.service_account in ("", identity.service_account) and not is_auto_registered(config):
                yield config.key


def _check_address(who: str, proxy: Proxy, peer: str, rules: AdmissionRules) -> None:
    address = proxy.ip_addresses[0]
    if (usual := str(ipaddress.ip_address(address))) != address or usual.startswith("::ffff:"):
        raise _refused(f"{who}: {address} is not as the address is usually written")
    if not _is_believed(address, peer, rules):
        raise _refused(
            f"{who} at {address} comes from {host_of(peer)}: a workload can only register the address that it connects "
            "from (behind NAT: --auto-register-any-address)"
        )


def _is_believed(address: str, peer: str, rules: AdmissionRules) -> bool:
    if rules.any_address or (rules.trust_local and is_local(peer)):
        return True
    return plain_address(host_of(peer).strip("[]")) == plain_address(address)


def _check_free(
    who: str,
    workload: RegisteredWorkload,
    identity: Identity,
    world: World,
    domains: TrustDomains,
    joining: Collection[ConfigKey],
) -> None:
    """The address must not be another's, as far as this replica knows now."""
    own = str(identity)
    # Who may say whose an address is differs by how it is known: a registry's word is final, a ServiceEntry names an
    # account or leaves it to whoever comes, and another auto-registered entry has the identity that was proven.
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
            if _in_own_domain(account, domains) != own:
                raise _refused(f"{who}: {workload.address} is an endpoint of {service.host} for {account}")
    mine = set(joining)
    for config in world.auto_registered(workload.address):
        other = _in_own_domain(config.annotations.get(IDENTITY_ANNOTATION, ""), domains)
        if other == own:
            mine.add(config.key)
        is_elsewhere = config.spec.network and workload.network and config.spec.network != workload.network
        if other != own and not is_elsewhere:
            raise _refused(f"{who}: {workload.address} is registered for {other} as {config.namespace}/{config.name}")
    if len(mine - {workload.key}) >= MAX_AT_ADDRESS:
        raise _refused(f"{who}: {workload.address} is registered {MAX_AT_ADDRESS} times for {own} already")


def _in_own_domain(text: str, domains: TrustDomains) -> str:
    """A SPIFFE id with the mesh's own trust domain, if it has an alias of that."""
    identity = parse_identity(text)
    if identity is None or identity.trust_domain not in domains.aliases:
        return text
    return str(attrs.evolve(identity, trust_domain=domains.own))


def _has_probe(proxy: Proxy) -> bool:
    """True if the workload's own ProxyConfig has a probe, by which its agent will report."""
    annotation = member(proxy.metadata, "ANNOTATIONS", ANNOTATION)
    return any(_names_probe(given) for given in (proxy.metadata.get("PROXY_CONFIG"), annotation))


def _names_probe(given: Any) -> bool:
    if isinstance(given, str):
        if len(given) > MAX_ANNOTATION:
            return False
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            document = next(load(given, Origin(ANNOTATION)), None)
            given = document.data if isinstance(document, Document) else None
    return isinstance(given, Mapping) and bool(given.get("readinessProbe"))


def _refused(text: str) -> StreamError:
    return StreamError(Code.PERMISSION_DENIED, text)
