from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.spiffe import Identity, parse_identity

WEB = "spiffe://cluster.local/ns/shop/sa/web"


@pytest.mark.parametrize(
    ("uri", "identity"),
    [
        (WEB, Identity("cluster.local", "shop", "web")),
        ("spiffe://td-1_a.example/ns/a-1/sa/build.robot-2", Identity("td-1_a.example", "a-1", "build.robot-2")),
        (f"spiffe://mesh/ns/{'n' * 63}/sa/{'s' * 253}", Identity("mesh", "n" * 63, "s" * 253)),
    ],
)
def test_an_identity_is_read_and_written_the_same(uri: str, identity: Identity) -> None:
    assert parse_identity(uri) == identity
    assert str(identity) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://",
        "SPIFFE://cluster.local/ns/shop/sa/web",
        "https://cluster.local/ns/shop/sa/web",
        "spiffe://cluster.local",
        "spiffe:///ns/shop/sa/web",
        "spiffe://Cluster.Local/ns/shop/sa/web",
        "spiffe://cluster.local./ns/shop/sa/web",
        "spiffe://.cluster.local/ns/shop/sa/web",
        "spiffe://cluster..local/ns/shop/sa/web",
        "spiffe://cluster.local:443/ns/shop/sa/web",
        "spiffe://root@cluster.local/ns/shop/sa/web",
        "spiffe://cluster.l\u043ecal/ns/shop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/w\u0435b",
        "spiffe://cluster.local/ns/\uff53hop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/we\u0301b",
        "spiffe://cluster.local/ns/Shop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/WEB",
        "spiffe://cluster.local/ns/sh%6fp/sa/web",
        "spiffe://cluster.local/ns/shop/sa/web%00",
        "spiffe://cluster.local/ns/shop/sa/web\0",
        "spiffe://cluster.local/ns/shop/sa/web\n",
        "spiffe://cluster.local/ns/shop/sa/web ",
        "spiffe://cluster.local/ns/shop/sa/web.",
        "spiffe://cluster.local/ns/shop/sa/.web",
        "spiffe://cluster.local/ns/shop/sa/a..b",
        "spiffe://cluster.local/ns/shop/sa/..",
        "spiffe://cluster.local/ns/./sa/web",
        "spiffe://cluster.local/ns/a.b/sa/web",
        "spiffe://cluster.local/ns/../sa/web",
        "spiffe://cluster.local/ns//sa/web",
        "spiffe://cluster.local/ns/shop/sa/",
        "spiffe://cluster.local//ns/shop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/web/",
        "spiffe://cluster.local/ns/shop/sa/web/more",
        "spiffe://cluster.local/NS/shop/SA/web",
        "spiffe://cluster.local/ns/shop/sa/web?a=b",
        "spiffe://cluster.local/ns/shop/sa/web#a",
        "spiffe://cluster.local/ns/-shop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/web-",
        f"spiffe://{'t' * 256}/ns/shop/sa/web",
        f"spiffe://cluster.local/ns/{'n' * 64}/sa/web",
        f"spiffe://cluster.local/ns/shop/sa/{'s' * 254}",
    ],
)
def test_what_only_looks_like_an_identity_is_none(uri: str) -> None:
    assert parse_identity(uri) is None


@given(st.text(alphabet="aA.-_/%:\0\u0435spn", max_size=40))
def test_no_two_texts_are_one_identity(path: str) -> None:
    for uri in (f"spiffe://{path}", f"spiffe://a/{path}", f"spiffe://a/ns/{path}/sa/a"):
        identity = parse_identity(uri)
        assert identity is None or str(identity) == uri
