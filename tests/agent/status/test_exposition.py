"""One page of metrics out of several, whatever pieces they come in, and whatever is in them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from mesh_pilot.agent.status.exposition import MOST_LINE_BYTES, Exposition, ExpositionError


def merged(*pages: tuple[bytes, bool], openmetrics: bool = False, size: int = 0) -> bytes:
    """The whole of pages, each with whether it is OpenMetrics, fed in pieces of a size."""
    whole = Exposition(openmetrics=openmetrics)
    out = b""
    for page, is_open in pages:
        part = whole.part(openmetrics=is_open)
        for piece in [page[at : at + size] for at in range(0, len(page), size)] if size else [page]:
            out += part.feed(piece)
        out += part.end()
    return out + whole.end()


ENVOY = b"""# TYPE envoy_cluster_upstream_cx_total counter
envoy_cluster_upstream_cx_total{cluster="a\\"}{b"} 5

# TYPE envoy_cluster_odd counter
envoy_cluster_odd{} 7

# TYPE envoy_listener_x histogram
envoy_listener_x_bucket{le="0.5"} 0
envoy_listener_x_bucket{le="+Inf"} 3
envoy_listener_x_sum{} 3.05
envoy_listener_x_count{} 3

# TYPE envoy_up gauge
envoy_up{} 1
"""


def test_pages_follow_each_other_and_families_are_described_once() -> None:
    application = b"# HELP up Whether it is up\n# TYPE up gauge\nup 1\n# TYPE envoy_up gauge\nenvoy_up 2 1700000000000"
    agent = b'# HELP up Again\n# TYPE up gauge\nup{x="y"} NaN\n'
    found = merged((ENVOY, False), (application, False), (agent, False))
    assert found.startswith(ENVOY)
    assert found[len(ENVOY) :] == (
        b'# HELP up Whether it is up\n# TYPE up gauge\nup 1\nenvoy_up 2 1700000000000\nup{x="y"} NaN\n'
    )
    assert {family.name for family in text_families(found.decode())} >= {"envoy_cluster_upstream_cx", "up"}


def test_istios_metrics_of_envoy_have_istios_names() -> None:
    page = (
        b"# TYPE envoy_wasmcustom_istio_requests_total counter\n"
        b'envoy_wasmcustom_istio_requests_total{a="\\nenvoy_wasmcustom_istio_x"} 5\n'
        b"envoy_wasmcustom_other 7\n"
    )
    renamed = page.replace(b"envoy_wasmcustom_istio_requests", b"istio_requests")
    for size in (1, 7, len(page)):
        part = Exposition(openmetrics=False).part(openmetrics=False, of_envoy=True)
        assert b"".join(part.feed(page[at : at + size]) for at in range(0, len(page), size)) == renamed
    assert merged((page, False)) == page


def test_lines_that_are_no_metrics_are_left_out_and_counted() -> None:
    whole = Exposition(openmetrics=False)
    page = b'<html>\nup 1\nup{a="b" 2\nup one\n9up 1\n\xff 1\nup 1 2 3\n# a comment\nlast 2\n'
    assert whole.part(openmetrics=False).feed(page) == b"up 1\nlast 2\n"
    assert whole.left_out == 6
    labels = b'up{a=b} 1\nup{a="b" "} 1\nup{a="\xff"} 1\n# HELP up \xff\nup{a="\xc3\xa9",b="}\\"",} 1\nup{ } 1\n'
    assert whole.part(openmetrics=False).feed(labels) == b'up{a="\xc3\xa9",b="}\\"",} 1\nup{ } 1\n'
    timestamps = b"up 1 1.5\nup 1 1e3\nup 1 99999999999999999999\nup 1 # {} 1\nup 1 -3\n"
    assert whole.part(openmetrics=False).feed(timestamps) == b"up 1 -3\n"
    whole = Exposition(openmetrics=True)
    assert whole.part(openmetrics=True).feed(b"up 1 1.2.3\nup 1 1e400\nup 1 # {a} 1\nup 1 1e3\n") == b"up 1 1e3\n"
    assert whole.left_out == 3


def test_long_numbers_that_are_none_cost_no_more_than_their_length() -> None:
    digits = b"1" * (MOST_LINE_BYTES - 100)
    page = b"up %bx\nup 1.%bx\nup 1 %bx\nup 1e%bx\n" % ((digits,) * 4)
    assert merged((page, False)) == b""  # the square would take hours


def test_envoys_text_becomes_valid_openmetrics_where_the_application_has_that() -> None:
    application = b'# TYPE http counter\nhttp_total 5 1.5 # {trace_id="a"} 0.67\n# EOF\n'
    found = merged((ENVOY, False), (application, True), openmetrics=True).decode()
    families = {family.name: family for family in open_families(found)}
    assert families["envoy_cluster_upstream_cx"].type == "counter"
    assert families["envoy_cluster_odd"].type == "unknown"
    assert families["envoy_listener_x"].type == "histogram"
    assert families["http"].samples[0].exemplar.labels == {"trace_id": "a"}
    assert found.endswith("\n# EOF\n")
    assert found.count("# EOF") == 1


def test_openmetrics_becomes_text_where_several_applications_differ() -> None:
    application = (
        b'# TYPE http counter\nhttp_total 5 1.5 # {trace_id="a"} 0.67\n# TYPE v info\nv_info{v="1"} 1\n# EOF\n'
    )
    found = merged((application, True), (b"up 1\n", False))
    assert found == b'# TYPE http counter\nhttp_total 5 1500\n# TYPE v untyped\nv_info{v="1"} 1\nup 1\n'


def test_a_line_without_end_ends_its_page_only() -> None:
    whole = Exposition(openmetrics=False)
    part = whole.part(openmetrics=False)
    assert part.feed(b"up 1\n" + b"x" * 1000) == b"up 1\n"
    with pytest.raises(ExpositionError, match="a line of more than"):
        part.feed(b"x" * MOST_LINE_BYTES)
    assert whole.part(openmetrics=False).feed(b"down 0\n") == b"down 0\n"


LINES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [*ENVOY.split(b"\n"), b"a{} 1", b"a_total 2", b"# TYPE a counter", b"# HELP a b", b"# EOF", b"a 1 2"]
    ),
)
PAGES = st.lists(st.tuples(st.lists(LINES, max_size=12).map(b"\n".join), st.booleans()), max_size=3)


@given(PAGES, st.booleans(), st.integers(1, 40))
def test_the_pieces_in_which_a_page_comes_make_no_difference(
    pages: Sequence[tuple[bytes, bool]], openmetrics: bool, size: int
) -> None:
    whole = merged(*pages, openmetrics=openmetrics)
    in_pieces = merged(*pages, openmetrics=openmetrics, size=size)
    # Empty lines of the text format are kept by the fast path only; they mean nothing.
    assert _lines(in_pieces) == _lines(whole)


@given(PAGES, st.booleans())
def test_no_line_describes_a_family_twice_and_only_the_last_ends_openmetrics(
    pages: Sequence[tuple[bytes, bool]], openmetrics: bool
) -> None:
    lines = _lines(merged(*pages, openmetrics=openmetrics))
    described = [tuple(line.split()[1:3]) for line in lines if line.startswith(b"#")]
    assert len(described) == len(set(described))
    assert (b"# EOF" in lines[-1:]) is openmetrics


def _lines(page: bytes) -> list[bytes]:
    return [line.rstrip() for line in page.split(b"\n") if line.strip()]
