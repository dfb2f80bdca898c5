"""The workload of a proxy: what the registry says of it, before what its node says of itself.

All objects select proxies by what is known, and by nothing else, so that no node can lose a policy by what it leaves
out or claims. Rules: Istio's ``Proxy.SetWorkloadLabels`` and the locality of a proxy, which it takes from its labels.

- The labels of the registry replace the node's. Those of the node count while the registry has none for it.
- A router has both: it often shares an address with services, whose labels must not take its Gateways from it.
- A member of a WorkloadGroup has the labels of its group, also those for which its entry, which the node wrote, has
  other values.
- An address with several registrations has the labels of all. A node that names some of them has theirs; names that
  choose none at its addresses leave all of them in force, and its own labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.proxy.registration import RegistrationClaim, registered
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.net import plain_address
from mesh_pilot.model.service import NOWHERE, SERVICE_LABEL, TOPOLOGY_LABELS, Locality
from mesh_pilot.world.service_entries import entry_labels, entry_locality, group_labels, group_of, is_auto_registered
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class NodeWorkload:
    """The properties of a workload as its node says them."""

    labels: Labels
    locality: Locality
    network: str
    cluster_id: str


@attrs.frozen(cache_hash=True)
class WorkloadRecord:
    """The properties of a workload as the registry says them."""

    is_chosen: bool = False
    """True if a registration at its addresses, or one that its node names, is its own."""
    labels: Labels = frozenset()
    """The labels of all its registrations: one may have several values."""
    first: Labels = frozenset()
    """The same with one value for each: that of the oldest registration that has it."""
    services: Labels = frozenset()
    """The labels that name the services that it is registered as."""
    locality: Locality = NOWHERE
    network: str = ""
    cluster_id: str = ""
    """The cluster of its registration in Consul."""
    node: str = ""
    """The machine that it runs on."""

    @property
    def has_labels(self) -> bool:
        """True if somebody wrote labels for it, not only its place."""
        return any(key not in TOPOLOGY_LABELS for key, _ in self.labels)


@attrs.frozen(cache_hash=True)
class EffectiveWorkload:
    """The properties of a workload that count."""

    labels: Labels
    """All by which objects select: see ``WorkloadRecord.labels``."""
    by_key: Labels
    """One value for each label, for what needs a name."""
    locality: Locality
    network: str
    """Empty: neither says."""
    cluster_id: str
    record: WorkloadRecord


def effective_workload(view: View, claim: RegistrationClaim, said: NodeWorkload, *, router: bool) -> EffectiveWorkload:
    """The properties that count of a proxy's workload, of which its node says ``said``."""
    record = workload_record(view, claim)
    labels, by_key = record.labels, record.first
    if router or not (record.is_chosen and record.has_labels):
        labels = labels | said.labels if labels else said.labels
        by_key = frozenset({**dict(said.labels), **dict(by_key)}.items())
    place = record.locality if record.locality != NOWHERE else Locality.of_labels(dict(by_key))
    return EffectiveWorkload(
        labels=labels,
        by_key=by_key,
        locality=place if place != NOWHERE else said.locality,
        network=record.network or said.network,
        cluster_id=record.cluster_id or said.cluster_id,
        record=record,
    )


@attrs.frozen
class _Registered:
    """The properties that one registration says."""

    labels: Mapping[str, str]
    locality: Locality
    network: str


@derived
def workload_record(view: View, claim: RegistrationClaim) -> WorkloadRecord:
    """The registry's record of the workload of a claim; empty while it knows none."""
    endpoints = [endpoint for _, found in registered(view, claim) for endpoint in found]
    # A node that names registrations is believed as far as the registry has them at its addresses, or by id elsewhere:
    # names that choose nothing must not rid it of the labels of what is registered there.
    entries: list[_Registered] = []
    is_chosen = bool(endpoints)
    if not claim.has_names:
        entries = list(_entries(view, claim))
        is_chosen = bool(endpoints or entries)
    elif not any(address in claim.ip_addresses for endpoint in endpoints for address in endpoint.addresses):
        endpoints += (e for _, found in registered(view, claim.without_names()) for e in found)
        entries = list(_entries(view, claim))
    if not endpoints and not entries:
        return WorkloadRecord()
    found = [*(_Registered(e.labels, e.locality, e.network) for e in endpoints), *entries]
    registrations = [endpoint.registration for endpoint in endpoints]
    first = {key: value for each in reversed(found) for key, value in each.labels.items()}
    return WorkloadRecord(
        is_chosen=is_chosen,
        labels=frozenset(pair for each in found for pair in each.labels.items()),
        first=frozenset(first.items()),
        services=frozenset((f"{SERVICE_LABEL}{each.service}", "true") for each in registrations if each is not None),
        locality=next((each.locality for each in found if each.locality != NOWHERE), NOWHERE),
        network=next((each.network for each in found if each.network), ""),
        cluster_id=next((e.cluster_id for e in endpoints if e.registration is not None and e.cluster_id), ""),
        node=next((e.node for e in endpoints if e.node), ""),
    )


def _entries(view: View, claim: RegistrationClaim) -> Iterator[_Registered]:
    """The WorkloadEntries at the addresses of a claim, whoever selects them, and the groups of those made here."""
    for address in dict.fromkeys(map(plain_address, claim.ip_addresses)):
        for entry in view.workload_entries_at(address):
            if claim.namespace in ("", entry.namespace):
                yield _Registered(entry_labels(entry.spec), entry_locality(entry.spec), entry.spec.network)
                named = group_of(entry) if is_auto_registered(entry) else None
                if named is not None and (group := view.config(named)) is not None:
                    yield _Registered(group_labels(group), NOWHERE, "")
