"""A collection that goes by two names, as over xDS: it comes twice, each time as old or new as it happens to be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import attrs
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.model.events import Delete, Event, Rejected, Upsert
from mesh_pilot.sources.mcp.receiver import McpReceiver, StreamEnded
from mesh_pilot.sources.mcp.statistics import ReceiverStatistics
from mesh_pilot.xds.mcp.collections import COLLECTIONS
from mesh_pilot.xds.mcp.messages import McpResource, McpResponse
from mesh_pilot.xds.mcp.wire import SourceDialect, encode_response
from tests.sources.conformance import Picture
from tests.sources.mcp_feed import NODE, SERVICES, bad_service, virtual_service
from tests.support.sample import examples

OLD, NEW = "networking/v1alpha3", "networking/v1"
BOTH = {OLD: COLLECTIONS[SERVICES], NEW: COLLECTIONS[SERVICES]}


@attrs.define
class Script:
    """A call that brings responses, and then ends."""

    responses: list[McpResponse]
    answers: list[bytes] = attrs.field(factory=list)

    async def recv_message(self) -> bytes | None:
        return encode_response(self.responses.pop(0)) if self.responses else None

    async def send_message(self, message: bytes, /) -> None:
        self.answers.append(message)


async def told(receiver: McpReceiver, responses: Iterable[McpResponse]) -> list[Event]:
    """The events that a stream of responses comes to."""
    send, receive = trio.open_memory_channel[Event](10_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.run, send)
        await trio.testing.wait_all_tasks_blocked()
        with contextlib.suppress(StreamEnded):
            await receiver.run_stream(Script(list(responses)), SourceDialect(NODE))
        nursery.cancel_scope.cancel()
    return [receive.receive_nowait() for _ in range(receive.statistics().current_buffer_used)]


async def told_with_statistics(
    receiver: McpReceiver, responses: Iterable[McpResponse]
) -> tuple[list[Event], ReceiverStatistics]:
    return await told(receiver, responses), receiver.statistics()


def whole(name: str, resources: Iterable[McpResource]) -> McpResponse:
    return McpResponse(name, tuple(resources), nonce="n")


STATES = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from([1, 2, "bad"]), max_size=3),
    min_size=1,
    max_size=5,
)
STEPS = st.lists(st.tuples(st.sampled_from([OLD, NEW]), st.integers(0, 1)), max_size=12)


@settings(max_examples=examples(200), deadline=None)
@given(STATES, STEPS)
def test_whatever_comes_first_the_end_is_the_last_state_and_nothing_is_told_twice(
    states: list[dict[str, int | str]], steps: list[tuple[str, int]]
) -> None:
    sent = {OLD: 0, NEW: 0}
    responses = [content(OLD, states[0]), content(NEW, states[0])]
    for name, ahead in steps:
        sent[name] = min(sent[name] + ahead, len(states) - 1)
        responses.append(content(name, states[sent[name]]))
    responses += [content(OLD, states[-1]), content(NEW, states[-1])]
    receiver = McpReceiver("xds", "istiod", BOTH, incremental=False)
    events, statistics = trio.run(told_with_statistics, receiver, responses)
    picture = Picture()
    for event in events:
        picture.apply(event)
    good = {name: version for name, version in states[-1].items() if version != "bad"}
    assert {name: version(picture, name) for name in good} == good
    assert {key[-1] for key in picture.items} <= states[-1].keys()
    assert {key[-1] for key in picture.rejected} == states[-1].keys() - good.keys()  # type: ignore[index]
    assert (statistics.items, statistics.rejected) == (len(picture.items), len(picture.rejected))


def content(name: str, state: dict[str, int | str]) -> McpResponse:
    return whole(
        name,
        (bad_service(n) if v == "bad" else virtual_service(n, int(v)) for n, v in state.items()),
    )


def version(picture: Picture, name: str) -> int:
    item = picture.items["config", "VirtualService", "default", name]
    return int(item.spec.http[0].timeout.total_seconds())  # type: ignore[union-attr]


async def test_what_comes_in_both_is_judged_refused_and_told_once() -> None:
    receiver = McpReceiver("xds", "istiod", BOTH, incremental=False)
    state = [virtual_service("a", 1), bad_service("b")]
    first = await told(receiver, [whole(OLD, ()), whole(NEW, ()), whole(OLD, state), whole(NEW, state)])
    assert [type(event) for event in first[-2:]] == [Upsert, Rejected]
    assert sum(isinstance(event, Upsert | Rejected) for event in first) == 2
    statistics = receiver.statistics()
    assert (statistics.judged, statistics.items, statistics.rejected) == (2, 1, 1)


async def test_a_server_that_no_longer_has_the_old_name_takes_nothing_away() -> None:
    receiver = McpReceiver("xds", "istiod", BOTH, incremental=False)
    state = [virtual_service("a", 1), bad_service("b")]
    await told(receiver, [whole(OLD, state), whole(NEW, state)])
    events = await told(receiver, [whole(OLD, ()), whole(NEW, state), whole(OLD, ())])
    assert not any(isinstance(event, Delete) for event in events)
    assert (receiver.statistics().items, receiver.statistics().rejected) == (1, 1)
