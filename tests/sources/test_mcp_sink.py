"""The two state machines of MCP, against each other and one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.sources.mcp.sink import Sink
from mesh_pilot.xds.config_api.stream import CollectionStream
from mesh_pilot.xds.mcp.messages import ErrorCode, McpRequest, McpResponse
from tests.sources.mcp_link import FakeCollections, Link, judge, resource
from tests.support.sample import examples

ONE, TWO = "istio/one", "istio/two"

Step = tuple[str, str, str, str]

COLLECTION = st.sampled_from([ONE, TWO])
NAME = st.sampled_from(["a/x", "a/y", "b/x"])
CONTENT = st.sampled_from(["1", "2", "3", "bad-1", "bad-2"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), COLLECTION, NAME, CONTENT),
        st.tuples(st.just("remove"), COLLECTION, NAME, st.just("")),
        st.tuples(
            st.sampled_from(["source reads", "source sends", "sink reads", "reconnect", "stale", "again", "overtake"]),
            st.just(""),
            st.just(""),
            st.just(""),
        ),
    ),
    max_size=40,
)


def play(link: Link, steps: list[Step]) -> None:
    """Hand messages on, lose and repeat them, and change the source's collections meanwhile."""
    for action, collection, name, content in steps:
        match action:
            case "put":
                link.served.put(collection, name, content)
            case "remove":
                link.served.remove(collection, name)
            case "source reads":
                link.source_reads()
            case "source sends":
                link.source_sends()
            case "sink reads":
                link.sink_reads()
            case "reconnect":
                link.connect()
            case "stale":
                link.to_source.append(McpRequest(ONE, "a nonce that never was"))
            case "again" if link.to_source:
                link.to_source.append(link.to_source[-1])
            case "overtake":
                link.overtake()


def assert_agree(link: Link) -> None:
    """The sink holds every good resource of the source as it is, and nothing that the source has not."""
    for collection in (ONE, TWO):
        there = link.served.resources(collection)
        held = {name: accepted.value for name, accepted in link.sink.accepted(collection).items()}
        good = {name: r.body for name, r in there.items() if not r.body.startswith(b"bad")}
        assert {name: held.get(name) for name in good} == good
        assert held.keys() <= there.keys()
        assert link.sink.rejected(collection).keys() == there.keys() - good.keys()
        assert link.values.get(collection, {}) == held


@settings(max_examples=examples(400), deadline=None)
@given(STEPS, st.booleans(), st.booleans())
def test_whatever_happens_the_sink_ends_with_what_the_source_holds(
    steps: list[Step], incremental: bool, only_whole: bool
) -> None:
    link = Link(FakeCollections(), Sink((ONE, TWO), incremental=incremental), only_whole=only_whole)
    play(link, steps)
    link.settle()
    assert_agree(link)
    assert link.sink.unanswered() == ()


@settings(max_examples=examples(300), deadline=None)
@given(STEPS)
def test_a_source_that_does_not_read_what_the_sink_has_is_found_out_where_that_can_be_seen(steps: list[Step]) -> None:
    link = Link(FakeCollections(), Sink((ONE, TWO)), ignores_versions=True)
    for collection in (ONE, TWO):
        link.served.put(collection, "always/there", "1")
    link.settle()
    play(link, steps)
    link.settle()
    for collection in (ONE, TWO):
        link.served.put(collection, "new/one", "1")
    link.settle()
    assert_agree(link)


def test_a_bad_resource_is_named_and_costs_no_good_one() -> None:
    link = Link(FakeCollections(), Sink((ONE,)))
    link.served.put(ONE, "a/x", "1")
    link.settle()
    link.served.put(ONE, "a/x", "bad")
    link.served.put(ONE, "a/y", "1")
    link.settle()
    assert link.values[ONE] == {"a/x": b"1", "a/y": b"1"}
    error = link.responses[-1].answer.error
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.INVALID_ARGUMENT, "istio/one a/x: is bad")


def test_after_a_refusal_the_whole_collection_is_asked_for_and_then_increments_again() -> None:
    link = Link(FakeCollections(), Sink((ONE,)))
    link.served.put(ONE, "a/x", "bad")
    link.settle()
    assert not link.responses[-1].answer.incremental
    link.served.put(ONE, "a/x", "1")
    link.settle()
    assert link.responses[-1].answer.incremental
    link.served.put(ONE, "a/y", "1")
    link.source_sends()
    assert [r.name for r in link.to_sink[0].resources] == ["a/y"]


def test_something_that_came_in_a_refused_response_and_went_before_the_next_is_dropped() -> None:
    link = Link(FakeCollections(), Sink((ONE,)))
    link.settle()
    link.served.put(ONE, "a/good", "1")
    link.served.put(ONE, "a/bad", "bad")
    link.settle()
    assert link.values[ONE] == {"a/good": b"1"}
    link.served.remove(ONE, "a/good")
    link.settle()
    assert link.values[ONE] == {}


def test_a_reconnecting_sink_says_what_it_has_and_is_sent_only_what_differs() -> None:
    link = Link(FakeCollections(), Sink((ONE,)))
    for name in "abc":
        link.served.put(ONE, name, "1")
    link.settle()
    link.served.put(ONE, "b", "2")
    link.served.remove(ONE, "c")
    link.connect()
    assert link.to_source[0].versions == {"a": "v-1", "b": "v-1", "c": "v-1"}
    link.source_reads()
    link.source_sends()
    assert [r.name for r in link.to_sink[0].resources] == ["b"]
    assert link.to_sink[0].removed == ("c",)


def test_what_is_in_force_already_is_not_judged_again() -> None:
    link = Link(FakeCollections(), Sink((ONE,), incremental=False))
    for number in range(100):
        link.served.put(ONE, f"a/{number}", "1")
    link.settle()
    link.served.put(ONE, "a/7", "2")
    link.settle()
    assert link.judged == 101
    assert list(link.responses[-1].upserted) == ["a/7"]


def test_a_collection_that_was_not_asked_for_is_refused_as_unknown_and_answered_under_its_name() -> None:
    sink: Sink[bytes] = Sink((ONE,))
    sink.open()
    applied = sink.apply(sink.receive(McpResponse("", nonce="")), {})
    assert applied.answer.collection == ""
    assert applied.answer.error is not None
    assert applied.answer.error.code is ErrorCode.UNIMPLEMENTED


def test_collections_that_the_source_does_not_have_are_left_out_and_keep_what_they_had() -> None:
    sink: Sink[bytes] = Sink((ONE, TWO))
    sink.open()
    review = sink.receive(McpResponse(TWO, (resource("a", "1"),)))
    sink.apply(review, {r.name: judge(r) for r in review.changed})
    assert [request.collection for request in sink.open(without=[TWO])] == [ONE]
    assert sink.unanswered() == (ONE,)
    assert list(sink.accepted(TWO)) == ["a"]


def test_a_response_is_sent_even_if_the_collection_is_empty() -> None:
    stream = CollectionStream(FakeCollections())
    stream.on_request(McpRequest(ONE))
    response = stream.next_response()
    assert response is not None
    assert (response.collection, response.resources) == (ONE, ())
    assert stream.next_response() is None


def test_a_refused_response_is_not_sent_again_before_something_changes() -> None:
    served = FakeCollections()
    served.put(ONE, "a", "bad")
    link = Link(served, Sink((ONE,)))
    link.settle()
    assert len(link.responses) == 1
    served.put(ONE, "a", "1")
    link.settle()
    assert len(link.responses) == 2
    assert link.responses[-1].recovered == ("a",)
