"""The states are exclusive and complete, and the gate nearest to the proxy decides which version it has."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.explain.truth.states import (
    AT_PROXY,
    SYNC_WORDS,
    WORST_FIRST,
    GateFacts,
    Truth,
    TruthState,
    truth_of_object,
    truth_of_proxy,
    truth_of_resource,
    truth_of_type,
)
from mesh_pilot.model.events import Item, NewValue, Refusal, Withheld
from mesh_pilot.model.resource import LISTENER, ROUTE
from mesh_pilot.model.warming import Awaited, WaitKind, WarmingResource
from mesh_pilot.world.guard import HeldObjects
from mesh_pilot.xds.ads.messages import Phase
from mesh_pilot.xds.ads.warming import Warming
from tests.support.worlds import configs

KEY = ("config", "VirtualService", "shop", "web")


def version(text: str) -> tuple[Item, ...]:
    spec = f"spec: {{hosts: [{text}.example.com], http: [{{directResponse: {{status: 200}}}}]}}"
    meta = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n"
    return tuple(configs(meta + spec))


NEW, OLD, ACCEPTED = version("new"), version("old"), version("accepted")
REFUSAL = Refusal("web-1.shop", "build envoy", ROUTE, ("80",), "no", datetime(2026, 1, 1, tzinfo=UTC))
WARMS = Warming(WarmingResource(LISTENER, "web", "1", (Awaited(WaitKind.RDS, "routes"),)), 12.0)

RESOURCES = st.lists(st.sampled_from([Truth(state, "why") for state in (*AT_PROXY, TruthState.IN_FORCE)]), max_size=3)
FACTS = st.builds(
    GateFacts,
    current=st.sampled_from([(), NEW]),
    refused=st.sampled_from(["", "spec: is wrong"]),
    held=st.sampled_from([None, HeldObjects("files", (KEY,), "8 of 10 went", 0.0)]),
    stale=st.sampled_from(["", "files: no answer"]),
    conflict=st.sampled_from(["", "that of files is in force, not that of mcp"]),
    withheld=st.sampled_from([None, Withheld(KEY, NEW, ACCEPTED, REFUSAL), Withheld(KEY, NEW, (), REFUSAL)]),
    domain=st.just("build envoy 1.40.0"),
    is_trial=st.booleans(),
    change=st.sampled_from([None, NewValue(KEY, NEW, OLD), NewValue(KEY, NEW, OLD, is_held=True)]),
    has_new=st.booleans(),
    rollout=st.just("running"),
    resources=RESOURCES.map(tuple),
)


@given(FACTS)
def test_an_object_is_in_one_state_and_the_gate_nearest_to_the_proxy_decides(facts: GateFacts) -> None:
    truth = truth_of_object(facts)
    at_proxy = {each.state for each in facts.resources}.intersection(AT_PROXY)
    is_taken_back = facts.change is not None and facts.change.is_held
    has_old = facts.change is not None and not facts.has_new
    expected = (
        (TruthState.WITHHELD, facts.withheld is not None),
        (TruthState.TAKEN_BACK, is_taken_back),
        (TruthState.CANARY, has_old),
        *((state, state in at_proxy) for state in AT_PROXY),
        (TruthState.CANARY, facts.change is not None),
        (TruthState.REFUSED, bool(facts.refused)),
        (TruthState.HELD, bool(facts.held)),
        (TruthState.STALE, bool(facts.stale)),
        (TruthState.CONFLICTING, bool(facts.conflict)),
        (TruthState.ABSENT, not facts.current or not facts.resources),
        (TruthState.IN_FORCE, True),
    )
    assert truth.state is next(state for state, holds in expected if holds)
    assert bool(truth.why) == (truth.state not in (TruthState.IN_FORCE, TruthState.ABSENT))
    assert not truth.fix or truth.why
    assert truth.has_newest == (facts.withheld is None and not is_taken_back and not has_old)


@given(FACTS)
def test_the_version_that_an_object_has_at_a_proxy_is_the_one_that_it_is_served(facts: GateFacts) -> None:
    served = truth_of_object(facts).served
    if facts.withheld is not None:
        assert served == facts.withheld.served
    elif facts.change is not None and (facts.change.is_held or not facts.has_new):
        assert served == facts.change.old
    else:
        assert served == facts.current


def test_of_several_states_each_is_told_before_those_that_matter_less() -> None:
    assert sorted(WORST_FIRST) == sorted(TruthState)


@given(st.sampled_from(Phase), st.booleans())
def test_each_phase_of_a_type_has_one_word_and_warming_hides_no_refusal_and_no_open_answer(
    phase: Phase, warms: bool
) -> None:
    truth = truth_of_type(phase, "1", (WARMS,) if warms else ())
    word = SYNC_WORDS[truth.state]
    if warms and phase in (Phase.ACKED, Phase.IDLE):
        assert word == "WARMING" and truth.why == "LDS web waits for RDS routes"
    else:
        assert word == {"ACKed": "SYNCED", "NACKed": "NACK", "un-ACKed": "STALE", "idle": "NOT SENT"}[phase.value]


@given(st.none() | st.just("7"), st.booleans(), st.booleans(), st.booleans())
def test_a_resource_is_in_one_state(held: str | None, is_refused: bool, is_unanswered: bool, warms: bool) -> None:
    warming = (WARMS,) if warms else ()
    truth = truth_of_resource(held, is_refused=is_refused, is_unanswered=is_unanswered, warming=warming)
    expected = (
        (TruthState.REFUSED, is_refused),
        (TruthState.PENDING, is_unanswered),
        (TruthState.WARMING, warms),
        (TruthState.ABSENT, held is None),
        (TruthState.IN_FORCE, True),
    )
    assert truth.state is next(state for state, holds in expected if holds)
    assert truth.version == (held or "")


@given(st.booleans(), st.booleans(), st.booleans())
def test_a_proxy_is_counted_once(is_refusing: bool, is_behind: bool, warms: bool) -> None:
    truth = truth_of_proxy(is_refusing=is_refusing, is_behind=is_behind, warming=(WARMS,) if warms else ())
    expected = (
        (TruthState.REFUSED, is_refusing),
        (TruthState.PENDING, is_behind),
        (TruthState.WARMING, warms),
        (TruthState.IN_FORCE, True),
    )
    assert truth.state is next(state for state, holds in expected if holds)
