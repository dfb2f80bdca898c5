"""Property 3: for any interleaving, a client that applies what it is sent ends with the server's resources."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, ROUTE
from mesh_pilot.xds.ads.messages import Variant
from tests.support.sample import examples
from tests.xds.fake_world import FakeWorld
from tests.xds.model_client import BAD, UNSERVED, ModelClient

Step = Callable[[ModelClient], None]

NAMES = ("a", "b", "c")
HIDDEN = "hidden"
"""By name only: no wildcard gives it."""

types = st.sampled_from((CLUSTER, ENDPOINT, ROUTE))
asked_types = st.one_of(types, types, types, st.just(UNSERVED))
names = st.sampled_from((*NAMES, HIDDEN))
some_names = st.lists(names, max_size=2, unique=True)


def put(type_url: str, name: str, text: str) -> Step:
    return lambda client: client.world.put(type_url, name, text, on_demand=name == HIDDEN) and None


def remove(type_url: str, name: str) -> Step:
    return lambda client: client.world.remove(type_url, name)


def replace_set(type_url: str) -> Step:
    return lambda client: client.world.replace_set(type_url)


def forget_history(type_url: str) -> Step:
    return lambda client: client.world.sets[type_url].forget_history()


def subscribe(type_url: str, wanted: list[str], wildcard: bool) -> Step:
    return lambda client: client.subscribe(type_url, wanted, wildcard=wildcard)


def unsubscribe(type_url: str, lost: list[str], wildcard: bool) -> Step:
    return lambda client: client.unsubscribe(type_url, lost, wildcard=wildcard)


def move(what: str) -> Step:
    """Something gets through the network."""
    return {
        "server reads": lambda client: client.server_reads(),
        "server sends": lambda client: client.server_sends() and None,
        "client reads": lambda client: client.client_reads(),
        "everything": lambda client: client.run_until_quiet(),
        "reconnect": lambda client: client.connect(),
        "restart": lambda client: client.connect(forgotten=True),
    }[what]


contents = st.sampled_from(("1", "2", "bad 1", "bad 2"))
moves = st.builds(move, st.sampled_from(("server reads", "server sends", "client reads")))
changes = st.one_of(
    st.builds(put, types, names, contents),
    st.builds(remove, types, st.sampled_from(NAMES)),
    st.builds(replace_set, types),
    st.builds(forget_history, types),
)
wishes = st.one_of(
    st.builds(subscribe, asked_types, some_names, st.booleans()),
    st.builds(unsubscribe, asked_types, some_names, st.booleans()),
)
rare = st.builds(move, st.sampled_from(("everything", "reconnect", "restart")))
steps = st.lists(st.one_of(moves, moves, changes, wishes, rare), max_size=50)


@pytest.mark.parametrize("variant", Variant)
@given(is_atomic=st.booleans(), steps=steps)
@settings(max_examples=examples(500), deadline=None)
def test_a_client_ends_with_what_the_server_has(variant: Variant, is_atomic: bool, steps: list[Step]) -> None:
    world = FakeWorld()
    for type_url in (CLUSTER, ENDPOINT, ROUTE):
        world.put(type_url, "a", "0")
    client = ModelClient(world, variant, is_atomic=is_atomic)
    client.subscribe(CLUSTER, [])
    client.subscribe(ENDPOINT, ["a", "b"])
    for step in steps:
        step(client)
    client.run_until_quiet()
    _mend(world)
    client.run_until_quiet()
    client.check()


def _mend(world: FakeWorld) -> None:
    """What is bad becomes good, so that nothing is left that a client refuses."""
    for type_url, source in world.sets.items():
        for name, resource in [*source.all().items(), *source.on_demand.items()]:
            if resource.body.startswith(BAD):
                world.put(type_url, name, "fixed", on_demand=name == HIDDEN)
