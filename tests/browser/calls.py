"""A mesh of 300 services in ten namespaces, and the calls between them as their proxies report them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mesh_pilot.model.events import Endpoints, Event, Upsert
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service
from mesh_pilot.model.traffic import RowKind, TrafficRow
from mesh_pilot.traffic.table import SLOTS, ReportingProxy
from tests.support.manifests import manifest
from tests.support.traffic_counts import Planted, reporting, row

NAMESPACES = ("edge", "shop", "search", "billing", "crm", "media", "mail", "auth", "data", "ops")
SERVICES = 300

ILL = ("shop-03", "shop-07")
"""The call of which a quarter fails since a minute."""
DENYING = "shop-02"
"""The service where a policy denies calls."""
ROUTED = "shop-01"
"""The service with a VirtualService."""
OLD = "crm-09"
"""The workload whose proxy has load reports alone."""

ROUTE = manifest(
    "VirtualService",
    ROUTED,
    "{hosts: [shop-01.shop.mesh.internal], http: [{route: [{destination: {host: shop-01.shop.mesh.internal}}]}]}",
)


@attrs.frozen
class Called:
    """A service of the mesh."""

    number: int

    @property
    def namespace(self) -> str:
        return NAMESPACES[self.number % len(NAMESPACES)]

    @property
    def name(self) -> str:
        return f"{self.namespace}-{self.number // len(NAMESPACES):02}"

    @property
    def host(self) -> str:
        return f"{self.name}.{self.namespace}.mesh.internal"

    @property
    def address(self) -> str:
        return f"10.1.{self.number // 250}.{self.number % 250 + 1}"

    @property
    def proxy(self) -> ReportingProxy:
        return reporting(f"{self.name}-1.{self.namespace}", self.name, self.address)

    def callees(self) -> list[Called]:
        """Two of its own namespace, those of twice its number; of each third also one of the next namespace."""
        own, step = self.number // len(NAMESPACES), len(NAMESPACES)
        found = [
            Called(self.number % step + step * each) for each in (2 * own + 1, 2 * own + 2) if each < SERVICES // step
        ]
        if own % 3 == 0 and self.number % step < step - 1:
            found.append(Called(self.number + 1))
        return found


def services() -> Sequence[Event]:
    """What a registry gives."""
    events: list[Event] = []
    for each in map(Called, range(SERVICES)):
        service = Service(each.host, each.namespace, (Port(80, "http", Protocol.HTTP),), registry="Consul")
        endpoint = Endpoint(each.address, 80, "http", labels={"app": each.name})
        events += [Upsert("given", service), Upsert("given", Endpoints(service.key, (endpoint,)))]
    return events


def plant(planted: Planted, *, since_slots: int = 6) -> None:
    """Ten minutes of calls; for the last slots the ill one is ill."""
    mesh = [*map(Called, range(SERVICES))]
    for slots, is_ill in ((SLOTS - since_slots, False), (since_slots, True)):
        well = [(each.proxy, [*_rows(each, is_ill)]) for each in mesh if each.name != OLD]
        for _ in range(slots):
            for each in mesh:
                if each.name == OLD:
                    planted.table.add(each.proxy, [*_attempts(each)], of_agent=False)
            planted.plant(*well)


def _rows(caller: Called, is_ill: bool) -> Iterator[TrafficRow]:
    for called in caller.callees():
        requests = 20 * (1 + called.number % 7)
        errors = requests // 4 if is_ill and (caller.name, called.name) == ILL else 0
        yield row(f"outbound|80||{called.host}", requests=requests, errors=errors, in_flight=caller.number % 3)
    yield row("inbound|80||", requests=500 if caller.name == ROUTED else 60)
    if caller.name == DENYING:
        yield row("inbound_0.0.0.0_80;", RowKind.LISTENER, allowed=55, denied=5)
    if caller.name == "edge-00":
        yield row("PassthroughCluster", connections=4)


def _attempts(caller: Called) -> Iterator[TrafficRow]:
    for called in caller.callees():
        yield row(f"outbound|80||{called.host}", attempts=30, failed_attempts=3)
