"""Which patches are left out of a resource that Envoy would refuse with all of them."""

from __future__ import annotations

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.extensions.transport_sockets.raw_buffer.v3.raw_buffer_pb2 import RawBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.envoy_filter.apply import edit_cluster
from mesh_pilot.envoy.envoy_filter.edit import Edit
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Operation, Patch
from mesh_pilot.envoy.envoy_filter.trials import MAX_TRIALS, apply_patches
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import LISTENER
from tests.support.patching import HCM, LUA, ROUTER, Shop, envoy_filter, in_filter, in_http_filter, managers, patch

OUT = "SIDECAR_OUTBOUND"
NAME = "0.0.0.0_80"
STATS, FAULT, CORS, LAST = (f"envoy.filters.http.{name}" for name in ("grpc_stats", "fault", "cors", "router"))


def http_filter(operation: str, name: str, kind: str) -> dict[str, object]:
    value = {"name": name, "typed_config": {"@type": kind}}
    return patch("HTTP_FILTER", operation, value, context=OUT, listener=in_filter(HCM))


GOOD = http_filter("INSERT_FIRST", "lua", LUA)
BAD = http_filter("INSERT_FIRST", "two", ROUTER)
REMOVE = patch("HTTP_FILTER", "REMOVE", context=OUT, listener=in_http_filter(LAST))
OTHER = http_filter("ADD", "own", ROUTER)


def chain(destination: int, name: str) -> dict[str, object]:
    value = {"name": name, "filter_chain_match": {"destination_port": destination}}
    return patch("FILTER_CHAIN", "ADD", value, context=OUT, listener={"name": NAME})


@pytest.mark.parametrize("patches", [(BAD, GOOD), (GOOD, BAD), (BAD, GOOD, BAD), (GOOD, BAD, BAD)])
def test_the_other_patches_of_an_envoy_filter_are_applied(patches: tuple[dict[str, object], ...]) -> None:
    shop = Shop(envoy_filter(*patches))
    assert shop.http_filters(NAME) == [["lua", STATS, FAULT, CORS, LAST]]
    found = {(problem.patch, problem.resource) for problem in shop.problems}
    assert found == {(i, f"listener {NAME}") for i, p in enumerate(patches) if p is BAD}


@pytest.mark.parametrize(
    "patches", [(BAD, GOOD, REMOVE, OTHER), (REMOVE, OTHER, GOOD, BAD), (REMOVE, BAD, OTHER, GOOD)]
)
def test_patches_that_need_one_another_stay_together(patches: tuple[dict[str, object], ...]) -> None:
    shop = Shop(envoy_filter(*patches))
    assert shop.http_filters(NAME) == [["lua", STATS, FAULT, CORS, "own"]]
    assert {problem.patch for problem in shop.problems} == {patches.index(BAD)}


def test_a_refused_patch_of_one_envoy_filter_costs_no_other() -> None:
    pair = envoy_filter(REMOVE, OTHER, name="pair", day=2)
    shop = Shop(envoy_filter(BAD, BAD, name="a", day=1), pair, envoy_filter(BAD, GOOD, name="b", day=3))
    assert shop.http_filters(NAME) == [["lua", STATS, FAULT, CORS, "own"]]
    assert [(p.config.name, p.patch) for p in shop.problems] == [("a", 0), ("a", 1), ("b", 0)]


def test_of_patches_that_conflict_the_first_stays() -> None:
    shop = Shop(
        envoy_filter(chain(1, "a"), name="a", day=1),
        envoy_filter(chain(1, "b"), chain(2, "c"), name="b", day=2),
        envoy_filter(chain(2, "d"), name="c", day=3),
    )
    assert [c.name for c in shop.listener(NAME).filter_chains][1:] == ["a", "c"]
    assert [(p.config.name, p.patch) for p in shop.problems] == [("b", 0), ("c", 0)]


def test_an_incomplete_filter_may_be_completed_by_another_patch() -> None:
    buffer = {"@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer"}
    value = {"name": "buffer", "typed_config": buffer}
    add = patch("HTTP_FILTER", "INSERT_FIRST", value, context=OUT, listener=in_filter(HCM))
    full = {"name": "buffer", "typed_config": {**buffer, "max_request_bytes": 7}}
    merge = patch("HTTP_FILTER", "MERGE", full, context=OUT, listener=in_http_filter("buffer"))
    shop = Shop(envoy_filter(add), envoy_filter(merge, name="b", day=2))
    assert shop.http_filters(NAME) == [["buffer", STATS, FAULT, CORS, LAST]]
    (problem,) = shop.problems
    assert problem.reason.startswith("Envoy would refuse patch.value, unless other patches complete it: ")
    assert problem.severity == "warning"
    assert Shop(envoy_filter(add)).http_filters(NAME) == [[STATS, FAULT, CORS, LAST]]


def test_a_resource_that_no_patch_changes_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    shop = Shop(envoy_filter(patch("CLUSTER", "REMOVE", context=OUT, cluster={"name": "none"}), GOOD))
    monkeypatch.setattr("mesh_pilot.envoy.envoy_filter.trials.refusals", never)
    assert shop.resource(LISTENER, "10.9.1.1_9000") is not None
    assert managers(shop.listener("virtualInbound"))


# -- the search alone: patches that add a transport socket each


def socket_match(index: int, good: bool) -> Patch:
    socket = {"name": "a" if good else ""}
    value = Cluster(transport_socket_matches=[{"name": str(index), "transport_socket": socket}])
    if good:
        value.transport_socket_matches[0].transport_socket.typed_config.Pack(RawBuffer())
    key = ConfigKey("EnvoyFilter", "shop", f"f{index // 3}")
    match = api.EnvoyFilterEnvoyConfigObjectMatch()
    return Patch(key, index, ApplyTo.CLUSTER, Operation.MERGE, match, value)


class Counted:
    """Edits of a cluster, counted."""

    def __init__(self, base: Cluster) -> None:
        self.base = base
        self.calls = 0

    def __call__(self, edit: Edit) -> Cluster:
        self.calls += 1
        cluster = Cluster()
        cluster.CopyFrom(self.base)
        edit_cluster(edit, cluster, ())
        return cluster


@settings(deadline=None)
@given(st.lists(st.sampled_from([True, True, False]), max_size=24))
def test_what_is_left_out_is_what_envoy_refuses(good: list[bool]) -> None:
    counted = Counted(Cluster(name="a"))
    result, edit = apply_patches([socket_match(i, g) for i, g in enumerate(good)], "cluster a", counted)
    assert [int(match.name) for match in result.transport_socket_matches] == [i for i, g in enumerate(good) if g]
    assert [problem.patch for problem in edit.problems] == [i for i, g in enumerate(good) if not g]
    assert counted.calls <= MAX_TRIALS + 3
    if all(good):
        assert counted.calls == 1


def test_a_refusal_that_is_the_resources_own_is_no_patchs_fault() -> None:
    result, edit = apply_patches([socket_match(0, True), socket_match(1, False)], "cluster", Counted(Cluster()))
    assert [problem.patch for problem in edit.problems] == [1]
    assert len(result.transport_socket_matches) == 1


def test_the_number_of_trials_is_bounded_and_what_is_not_tried_is_left_out() -> None:
    counted = Counted(Cluster(name="a"))
    result, edit = apply_patches([socket_match(i, False) for i in range(500)], "cluster a", counted)
    assert counted.calls <= MAX_TRIALS + 3
    assert not result.transport_socket_matches
    assert len(edit.problems) == 500
    assert edit.problems[-1].reason == "Envoy would refuse it: the patches of cluster a need more than 100 trials"
