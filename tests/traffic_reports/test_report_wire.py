"""Reports on the wire: what is written is read back, and no bytes do more than be refused."""

from __future__ import annotations

from collections import Counter as Tally
from contextlib import suppress

from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.base.protowire import WireError
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
from mesh_pilot.traffic.load_reports import LoadRows, first_node, report_pieces
from tests.traffic_reports.streams import loads, node

numbers = st.integers(0, 2**40)
rows = st.builds(
    TrafficRow,
    st.sampled_from(RowKind),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    st.dictionaries(st.sampled_from(Counter), numbers, max_size=5),
)


@given(st.lists(rows, max_size=8), st.integers(0, 10**7), st.booleans(), st.binary(max_size=20))
def test_a_report_is_read_as_it_was_written(
    found: list[TrafficRow], milliseconds: int, follows_gap: bool, of: bytes
) -> None:
    report = TrafficReport(tuple(found), milliseconds / 1000, follows_gap, of)
    assert read_report(encode_report(report)) == report


@given(st.integers(0, 10**8))
def test_an_answer_is_read_as_it_was_written(milliseconds: int) -> None:
    assert read_answer(encode_answer(milliseconds / 1000)) == milliseconds / 1000


@given(st.binary(max_size=300) | st.lists(rows, max_size=3).map(lambda each: encode_report(TrafficReport(tuple(each)))))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    for cut in (data, data[: len(data) // 2], data[1:]):
        with suppress(WireError, UnicodeDecodeError):
            read_report(cut)
        with suppress(WireError, DecodeError, UnicodeDecodeError):
            first_node(cut)
            for piece in report_pieces(cut):
                list(LoadRows(adds_dropped=False).rows(piece))


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
localities = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 50)), max_size=3)


@given(st.dictionaries(names, localities), st.booleans(), st.sampled_from([0, 0, 0, 1, 3]))
def test_the_rows_of_a_load_report_are_its_sums(
    clusters: dict[str, list[tuple[int, int, int]]], has_node: bool, padding: int
) -> None:
    """``padding``: thousands of idle clusters, which make it come in pieces."""
    request = LoadStatsRequest(node=node() if has_node else None)
    expected: dict[str, Tally[Counter]] = {}
    for number in range(padding * 2000):
        request.cluster_stats.add(cluster_name=f"idle {number}").load_report_interval.FromSeconds(10)
    for name, found in clusters.items():
        stats = request.cluster_stats.add(cluster_name=name)
        for successes, errors, issued in found:
            stats.upstream_locality_stats.add(
                total_successful_requests=successes, total_error_requests=errors, total_issued_requests=issued
            )
            sums = {Counter.ATTEMPTS: successes + errors, Counter.FAILED_ATTEMPTS: errors, Counter.CONNECTIONS: issued}
            expected.setdefault(name, Tally()).update(sums)
        if expected.get(name, Tally())[Counter.ATTEMPTS]:
            del expected[name][Counter.CONNECTIONS]
    loads = LoadRows(adds_dropped=False)
    pieces = list(report_pieces(request.SerializeToString()))
    found_rows = [row for piece in pieces for row in loads.rows(piece)]
    told = {name: dict(+sums) for name, sums in expected.items() if +sums}
    assert {row.name: row.counts for row in found_rows} == told
    assert len(pieces) > 1 or padding < 3


def test_what_grpc_drops_is_a_failed_attempt_and_what_envoy_drops_is_among_its_errors() -> None:
    request = LoadStatsRequest()
    stats = request.cluster_stats.add(cluster_name="a", total_dropped_requests=4)
    stats.upstream_locality_stats.add(total_successful_requests=1, total_error_requests=4)
    data = request.SerializeToString()
    told = {adds: [dict(row.counts) for row in LoadRows(adds_dropped=adds).rows(data)] for adds in (False, True)}
    assert told == {
        False: [{Counter.ATTEMPTS: 5, Counter.FAILED_ATTEMPTS: 4}],
        True: [{Counter.ATTEMPTS: 9, Counter.FAILED_ATTEMPTS: 8}],
    }


def test_a_nodes_extensions_are_not_decoded_and_idle_clusters_make_no_rows() -> None:
    busy = {"successful_requests": 1}
    data = loads(node(), **{f"idle-{number}": {} for number in range(90)}, **{f"busy-{n}": busy for n in range(10)})
    pieces = list(report_pieces(data))
    found = [row for piece in pieces for row in LoadRows(adds_dropped=False).rows(piece)]
    assert sum(map(len, pieces)) == len(data) - len(loads(node()))
    assert sorted(row.name for row in found) == [f"busy-{number}" for number in range(10)]
