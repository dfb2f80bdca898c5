"""Reports of agents are the messages that ``proto/traffic`` describes, and that gRPC reflection tells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.api.meshpilot.traffic.v1 import RowKind as MessageKind
from mesh_pilot.api.meshpilot.traffic.v1 import TrafficAnswer, TrafficCounter
from mesh_pilot.api.meshpilot.traffic.v1 import TrafficReport as Message
from mesh_pilot.model.traffic import (
    Counter,
    RowKind,
    TrafficReport,
    TrafficRow,
    encode_answer,
    encode_report,
    read_answer,
    read_report,
)

COUNTS = st.dictionaries(st.sampled_from(Counter), st.integers(0, 2**40), min_size=1)
ROWS = st.builds(TrafficRow, st.sampled_from(RowKind), st.text(min_size=1, max_size=50), COUNTS)
REPORTS = st.builds(
    TrafficReport,
    st.lists(ROWS, max_size=4).map(tuple),
    st.integers(1, 10**6).map(lambda milliseconds: milliseconds / 1000),
    st.booleans(),
    st.binary(max_size=20),
)


@given(REPORTS)
def test_a_report_is_the_message(report: TrafficReport) -> None:
    message = Message.parse(encode_report(report))
    assert (message.node, message.interval_ms, message.follows_gap) == (
        report.node,
        round(report.seconds * 1000),
        report.follows_gap,
    )
    for row, said in zip(report.rows, message.rows, strict=True):
        counts = dict(zip(said.counts[::2], said.counts[1::2], strict=True))
        assert (said.kind, said.name, counts) == (row.kind, row.name, {int(key): n for key, n in row.counts.items()})
    assert read_report(bytes(message)) == report


@given(st.integers(0, 10**6))
def test_an_answer_is_the_message(milliseconds: int) -> None:
    assert TrafficAnswer.parse(encode_answer(milliseconds / 1000)).interval_ms == milliseconds
    assert read_answer(bytes(TrafficAnswer(interval_ms=milliseconds))) == milliseconds / 1000


def test_the_message_names_the_same_numbers() -> None:
    assert {each.name: each.value for each in TrafficCounter if each.value} == {e.name: e.value for e in Counter}
    assert {each.name: each.value for each in MessageKind if each.value} == {e.name: e.value for e in RowKind}
