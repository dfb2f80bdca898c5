"""What a change of membership costs: a service or VirtualService that comes or goes is not a walk over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mesh_pilot.engine import Index, Memo
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Delete, item_key
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE
from mesh_pilot.world import World
from tests.support.manifests import manifest
from tests.support.routing import config, service, virtual_service
from tests.support.worlds import SOURCE, configs, sidecar, update, world_of

SIZES = (200, 3200)


class Reads:
    """Counts what translators look at: derived values and keys of indexes."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture(scope="module")
def reads() -> Iterator[Reads]:
    counted = Reads()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((Memo, "read"), (Index, "read")):
            patch.setattr(owner, name, _counted(getattr(owner, name), counted))
        yield counted


def _counted(function: Any, counted: Reads) -> Any:
    def count(*args: Any, **kwargs: Any) -> Any:
        counted.count += 1
        return function(*args, **kwargs)

    return count


class Client:
    """A sidecar with all its resources open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.catalog = WorldCatalog(world)
        self.resources = self.catalog.open(sidecar(namespace="shop"))
        self.look()

    def look(self) -> None:
        for type_url in (CLUSTER, LISTENER, ROUTE):
            held = self.resources.set(type_url)
            assert held is not None and (held.snapshot() if type_url != ROUTE else held.get("80"))

    def cost(self, reads: Reads, text: str) -> tuple[int, dict[str, int]]:
        """Reads, and calls by translator, of a change and of the change back."""
        before, calls = reads.count, self.world.memo.statistics().calls
        update(self.world, text)
        self.look()
        self.world.apply([Delete(SOURCE, item_key(c)) for c in configs(text)])
        self.look()
        after = self.world.memo.statistics().calls
        return reads.count - before, {f: n - calls.get(f, 0) for f, n in after.items() if n != calls.get(f, 0)}


def mesh(services: int) -> str:
    """HTTP services with a VirtualService each, and as many TCP services at their own addresses."""
    return "".join(web(n) if n % 2 else database(n) for n in range(services))


def web(number: int) -> str:
    routes = f"{{hosts: [s{number}], http: [{{route: [{{destination: {{host: s{number}}}}}]}}]}}"
    return service(f"s{number}") + virtual_service(f"s{number}", routes)


def database(number: int) -> str:
    return service(f"d{number}", ports="9000 tcp TCP", addresses=f"10.20.{number // 250}.{number % 250 + 1}")


CHANGES = {
    "service": service("new"),
    "TCP service": service("new", ports="9000 tcp TCP", addresses="10.30.0.1"),
    "VirtualService": virtual_service("new", "{hosts: [s7, u.example], http: [{route: [{destination: {host: s9}}]}]}"),
    "VirtualService with a wildcard": virtual_service("new", "{hosts: ['*.example'], http: [{redirect: {uri: /}}]}"),
    "HealthCheck": manifest("HealthCheck", "new", "{host: s7, tcp: {}}"),
    "routes": web(7).replace("s7}}]}", "s9}}]}"),
}
EVERYTHING = config("Sidecar", "default", "{egress: [{hosts: ['*/*']}]}")


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", EVERYTHING], ids=["no Sidecar", "a Sidecar for everything"])
def test_what_comes_and_goes_costs_about_the_same_in_a_mesh_16_times_as_large(reads: Reads, more: str) -> None:
    small, large = (Client(world_of(mesh(size) + more)) for size in SIZES)
    for what, text in CHANGES.items():
        few, calls = small.cost(reads, text)
        many, more_calls = large.cost(reads, text)
        assert many < 2.5 * few, what
        for function in (
            "cluster",
            "encoded_virtual_host",
            "virtual_service_routes",
            "outbound_listener",
            "service_clusters",
        ):
            assert more_calls.get(function, 0) == calls.get(function, 0) <= 4, (what, function)


def test_no_sidecar_looks_at_all_virtual_services(monkeypatch: pytest.MonkeyPatch) -> None:
    read_keys: set[tuple[str, object]] = set()
    read = Index.read

    def noting(index: Index[Any, Any], key: Any) -> Any:
        read_keys.add((index.name, key))
        return read(index, key)

    monkeypatch.setattr(Index, "read", noting)
    client = Client(world_of(mesh(10)))
    update(client.world, web(11))
    client.look()
    assert ("keeps_sessions", "mesh") in read_keys
    assert ("virtual_services", "mesh") not in read_keys


def test_the_number_of_shards_follows_the_mesh_and_costs_nobody_anything() -> None:
    world = world_of(mesh(60))
    client = Client(world)
    held = client.resources.set(CLUSTER)
    assert held is not None
    before, bits = held.snapshot(), world.shard_bits.peek(())
    update(world, "".join(service(f"more{n}") for n in range(200)))
    assert world.shard_bits.peek(()) > bits
    client.look()
    assert all(held.snapshot().entries[name] is resource for name, resource in before.entries.items())
    assert len(client.catalog.snapshots.diff(before, held.snapshot())) == 200
    world.apply([Delete(SOURCE, item_key(c)) for n in range(200) for c in configs(service(f"more{n}"))])
    world.apply([Delete(SOURCE, item_key(c)) for n in range(4, 60) for c in configs(web(n) if n % 2 else database(n))])
    update(world, service("last"))
    assert world.shard_bits.peek(()) == bits
    client.look()
    left = {
        name
        for name in before.entries
        if "|" not in name or any(f"{kind}{n}." in name for kind in "sd" for n in range(4))
    }
    assert held.snapshot().names == left | {"outbound|80||last.shop.svc.cluster.local"}
