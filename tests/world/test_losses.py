"""What is a loss and whose: "Who can cost whom what" about guards, with ill servers and hostile tenants."""

from __future__ import annotations

from mesh_pilot.model.config import Config, ConfigKey, Origin
from mesh_pilot.model.events import Delete, Event, Replace, Synced, Upsert, item_key
from mesh_pilot.world.guard import HoldStep
from mesh_pilot.world.intake import EXPECTED_SECONDS, Intake
from tests.world.test_intake import OPTIONS, SOURCE, Bench, endpoints


def config(
    name: str, *, namespace: str = "shop", kind: str = "VirtualService", file: str = "", version: str = "1"
) -> Config:
    origin = Origin(SOURCE, file or f"{namespace}/{name}.yaml", 1)
    return Config(ConfigKey(kind, namespace, name), version, origin=origin)


def many(count: int, **given: str) -> list[Config]:
    return [config(f"{given.get('kind', 'vs').lower()}-{n}", **given) for n in range(count)]


def deletes(*items: Config, explicit: bool = False) -> list[Event]:
    return [Delete(SOURCE, item_key(item), is_explicit=explicit) for item in items]


def held_of(bench: Bench) -> set[str]:
    return {f"{key[2]}/{key[3]}" for key in bench.held()}


def in_files() -> Bench:
    bench = Bench()
    bench.intake = Intake(bench.pictures, guarded=[SOURCE], in_files=[SOURCE], guard=OPTIONS)
    return bench


EVIL = many(40, namespace="evil")
SHOP = [*many(10), config("allow-contractor", kind="AuthorizationPolicy")]


def test_a_tenant_that_deletes_all_it_has_holds_nobody_elses_objects() -> None:
    """G1: 40 objects of evil and 11 of shop in one folder."""
    bench = in_files()
    bench.begin(*EVIL, *SHOP)
    (change,) = bench.tell(*deletes(*EVIL)).holds
    assert change.held.reason == "40 of 40 objects of namespace evil went at once"
    assert held_of(bench) == {f"evil/{item.key.name}" for item in EVIL}
    assert not bench.tell(*deletes(SHOP[-1]), after=43.0).holds
    assert "allow-contractor" not in bench.names()
    bench.tell(*deletes(SHOP[0]), after=1.0)
    assert SHOP[0].key.name not in {key[3] for key in bench.in_force() if key[2] == "shop"}


def test_what_else_a_held_namespace_loses_is_held_and_said() -> None:
    bench = in_files()
    policy = config("allow-all", namespace="evil", kind="AuthorizationPolicy")
    bench.begin(*EVIL, policy, *SHOP)
    bench.tell(*deletes(*EVIL))
    (change,) = bench.tell(*deletes(policy), after=60.0).holds
    assert change.step is HoldStep.BEGUN and change.held.security == ["AuthorizationPolicy/evil/allow-all"]
    assert bench.intake.held()[SOURCE].security == ["AuthorizationPolicy/evil/allow-all"]


def test_an_api_server_that_comes_back_empty_is_held_at_its_first_kind() -> None:
    """M10: 10 of 25 objects are less than half of all, but all of their kind."""
    bench = Bench()
    entries, services = many(10, kind="ServiceEntry"), many(10)
    others = [config("x", kind=kind) for kind in ("Gateway", "Sidecar", "Telemetry", "DestinationRule", "EnvoyFilter")]
    bench.begin(*entries, *services, *others)
    before = bench.in_force()
    bench.tell(Replace(SOURCE, ("config", "VirtualService"), ()))
    assert bench.in_force() == before
    bench.tell(Replace(SOURCE, ("config", "ServiceEntry"), ()), after=0.5)
    assert bench.in_force() == before
    bench.tell(*(Replace(SOURCE, ("config", other.key.kind), ()) for other in others), after=0.5)
    assert bench.in_force() == before


def test_an_emptied_folder_is_held_with_its_small_namespaces() -> None:
    bench = in_files()
    bench.begin(*EVIL, *SHOP, config("a", namespace="small"), config("b", namespace="small"))
    before = bench.in_force()
    bench.tell(Replace(SOURCE, (), ()))
    assert bench.in_force() == before
    bench.tell(*(Upsert(SOURCE, item) for item in (*EVIL, *SHOP)))
    bench.tell(after=OPTIONS.steady_seconds + 1)
    bench.tell(after=OPTIONS.steady_seconds + 1)
    assert not bench.held()


def test_what_somebody_deletes_is_no_loss() -> None:
    """Also of more than half, of a kind that goes whole, and next to a loss."""
    bench = Bench()
    bench.begin(*EVIL, *SHOP)
    assert not bench.tell(*deletes(*EVIL[:30], explicit=True)).holds
    assert not bench.tell(*deletes(*EVIL[30:], explicit=True), after=1.0).holds
    assert {key[2] for key in bench.in_force()} == {"shop"}
    assert len(bench.tell(*deletes(*SHOP), after=1.0).holds) >= 1
    assert {key[2] for key in bench.in_force()} == {"shop"}


def test_explicit_deletions_do_not_hide_a_loss() -> None:
    bench = Bench()
    bench.begin(*EVIL)
    bench.tell(*deletes(*EVIL[:20], explicit=True))
    bench.tell(*deletes(*EVIL[20:31]), after=1.0)
    assert held_of(bench) == {f"evil/{item.key.name}" for item in EVIL[20:31]}


def test_files_that_are_removed_are_deleted_while_most_of_their_namespace_stay() -> None:
    bench = in_files()
    gateways, rest = many(4, kind="Gateway"), many(5)
    bench.begin(*gateways, *rest)
    assert not bench.tell(*deletes(*gateways)).holds, "all of a kind, but less than half of the namespace's files"
    assert bench.tell(*deletes(*rest[:3]), after=1.0).holds, "five of nine files of 30 seconds ago are not half"


def test_what_the_api_deletes_is_no_loss_though_its_source_only_misses_it() -> None:
    bench = Bench()
    bench.begin(*SHOP)
    for item in SHOP[:8]:
        bench.intake.expect_deletion(item_key(item), bench.now)
    assert not bench.tell(*deletes(*SHOP[:8]), after=EXPECTED_SECONDS / 2).holds
    assert len(bench.in_force()) == 3
    bench.tell(*(Upsert(SOURCE, item) for item in SHOP))
    assert bench.tell(*deletes(*SHOP[:8]), after=EXPECTED_SECONDS).holds, "long ago is not now"


def test_one_sort_that_recovers_does_not_wait_for_another() -> None:
    bench = Bench()
    bench.begin(*EVIL, *SHOP)
    bench.tell(*deletes(*EVIL), Synced(SOURCE))
    bench.tell(*deletes(*SHOP[:8]), after=60.0)
    assert {key[2] for key in bench.held()} == {"evil", "shop"}
    bench.tell(*(Upsert(SOURCE, item) for item in SHOP[:8]), after=1.0)
    assert {key[2] for key in bench.held()} == {"evil"}


def test_a_source_that_comes_back_with_nothing_keeps_endpoints_too() -> None:
    bench = Bench()
    bench.restore(config("only"), endpoints("a"), endpoints("b"))
    before = bench.in_force()
    bench.begin()
    assert bench.in_force() == before


def test_a_service_that_somebody_deletes_is_held_no_more() -> None:
    """Its endpoints go first, as where a namespace of Kubernetes ends; what nobody deleted stays held."""
    bench = Bench()
    found = [endpoints(f"s{n}") for n in range(8)]
    bench.begin(*found)
    (change,) = bench.tell(*(Upsert(SOURCE, endpoints(f"s{n}", 0)) for n in range(6))).holds
    assert change.step is HoldStep.BEGUN and len(bench.held()) == 6
    assert not bench.tell(*(Delete(SOURCE, item_key(item), is_explicit=True) for item in found[:5]), after=1.0).holds
    assert set(bench.held()) == {item_key(found[5])}
    assert set(bench.in_force()) == {item_key(item) for item in found[5:]}
    (change,) = bench.tell(Delete(SOURCE, item_key(found[5]), is_explicit=True), after=1.0).holds
    assert change.step is HoldStep.RECOVERED and not bench.held()
    assert set(bench.in_force()) == {item_key(item) for item in found[6:]}


def test_what_was_lost_before_somebody_deleted_it_does_not_come_back() -> None:
    bench = Bench()
    found = [endpoints(f"s{n}") for n in range(8)]
    bench.begin(*found)
    bench.tell(Upsert(SOURCE, endpoints("s0", 0)))
    bench.tell(Delete(SOURCE, item_key(found[0]), is_explicit=True), after=1.0)
    bench.tell(*(Upsert(SOURCE, endpoints(f"s{n}", 0)) for n in range(1, 7)), after=1.0)
    assert set(bench.held()) == {item_key(item) for item in found[1:7]}
