"""Ranges of header values in ``why``: the end is not in the range, as in Envoy."""

from __future__ import annotations

import pytest

from mesh_pilot.explain.inspection.why.matchers import header_condition, request_facts
from mesh_pilot.explain.inspection.why.request import parse_request

MATCHER = {"name": "x-build", "range_match": {"start": "-2", "end": "5"}}


@pytest.mark.parametrize(
    ("value", "is_met"),
    [("-3", False), ("-2", True), ("4", True), ("5", False), ("04", True), ("", False), ("٤", False), ("4.5", False)],
)
def test_a_number_is_in_a_range_up_to_its_end(value: str, is_met: bool) -> None:
    request = parse_request("web.shop/", [f"x-build={value}"])
    facts = request_facts(request, scheme="http", path="/", authority="web.shop")
    assert header_condition(MATCHER, facts).is_met is is_met
