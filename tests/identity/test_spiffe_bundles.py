"""Bundle documents of SPIFFE: what is written can be read, and what is not one is refused with a reason."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.identity.trust.spiffe_bundles import (
    MAX_ROOTS,
    BundleDocument,
    BundleError,
    read_bundle,
    roots_in,
    write_bundle,
)
from tests.support.roots import Root, make_root

ROOT = make_root("one")
RSA = make_root("two", is_rsa=True)


def entry(root: Root, **more: object) -> dict[str, Any]:
    der = base64.b64encode(root.certificate.public_bytes(Encoding.DER)).decode()
    return {"kty": "EC", "use": "x509-svid", "x5c": [der], **more}


def test_a_document_that_is_written_can_be_read() -> None:
    document = BundleDocument((ROOT.pem, RSA.pem), 7, 300)
    written = write_bundle(document)
    assert read_bundle(json.loads(written)) == document
    assert [key["kty"] for key in json.loads(written)["keys"]] == ["EC", "RSA"]
    assert not {"d", "p", "q"} & {name for key in json.loads(written)["keys"] for name in key}


def test_keys_for_other_uses_are_passed_over() -> None:
    others = [{"kty": "EC", "use": "jwt-svid", "kid": "a"}, {"kty": "odd", "use": "new"}, {"kty": "EC"}, "text", None]
    assert read_bundle({"keys": [*others, entry(ROOT), entry(ROOT)]}) == BundleDocument((ROOT.pem,))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "no list of keys"),
        ({"keys": {}}, "no list of keys"),
        ({"keys": []}, "no key for x509-svid"),
        ({"keys": [entry(ROOT)] * (MAX_ROOTS + 1)}, "more than 100 roots"),
        ({"keys": [entry(ROOT, x5c=[])]}, "exactly one certificate"),
        ({"keys": [entry(ROOT, x5c=["a", "b"])]}, "exactly one certificate"),
        ({"keys": [entry(ROOT, x5c=[1])]}, "exactly one certificate"),
        ({"keys": [entry(ROOT, x5c=["!"])]}, "not a certificate"),
        ({"keys": [entry(ROOT, x5c=["YWJj"])]}, "not a certificate"),
        ({"keys": [entry(make_root("leaf", is_ca=False))]}, "CN=leaf.* not that of a CA"),
    ],
)
def test_what_is_no_bundle_is_refused(document: dict[str, object], reason: str) -> None:
    with pytest.raises(BundleError, match=reason):
        read_bundle(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["x509-svid", "YWJj"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["keys", "use", "x5c", "spiffe_sequence"]), inner),
)


@given(st.dictionaries(st.sampled_from(["keys", "spiffe_sequence", "spiffe_refresh_hint"]), JSON))
def test_no_document_is_worse_than_refused(document: dict[str, object]) -> None:
    try:
        read_bundle(document)
    except BundleError as error:
        assert str(error)


def test_pem_with_several_roots_gives_each_once() -> None:
    assert roots_in((ROOT.pem + RSA.pem + ROOT.pem).decode()) == (ROOT.pem, RSA.pem)
    with pytest.raises(BundleError, match="not PEM"):
        roots_in("nothing")
