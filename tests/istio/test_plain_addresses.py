"""Addresses and blocks in one spelling, whichever of many they are written in."""

from __future__ import annotations

import pytest

from mesh_pilot.model.net import plain_address


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10.0.0.1/32", "10.0.0.1"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("2001:DB8:0::1/128", "2001:db8::1"),
        ("2001:db8::1/64", "2001:db8::/64"),
        ("web.test", "web.test"),
        ("unix:///run/a.sock", "unix:///run/a.sock"),
    ],
)
def test_an_address_has_one_spelling(text: str, plain: str) -> None:
    assert plain_address(text) == plain
