"""The SPIFFE bundle endpoint."""

from __future__ import annotations

import json

from mesh_pilot.identity.trust.bundles import Bundle, TrustStore
from mesh_pilot.identity.trust.spiffe_bundles import BundleDocument, read_bundle
from mesh_pilot.ops.web.trust_bundle import REFRESH_HINT_SECONDS, BundleEndpoint
from tests.support.roots import make_root

ONE, TWO = make_root("one").pem, make_root("two").pem


def test_the_sequence_grows_when_own_roots_change_and_only_then() -> None:
    now = 1000.0
    trust = TrustStore()
    endpoint = BundleEndpoint(trust, lambda: now)

    def served() -> BundleDocument:
        return read_bundle(json.loads(bytes(endpoint.answer().body)))

    assert endpoint.answer().status_code == 503
    trust.put("ca", Bundle((ONE,)))
    assert served() == BundleDocument((ONE,), 1000, REFRESH_HINT_SECONDS)
    trust.put("https://east.test", Bundle((TWO,)), trust_domain="east.test")
    now = 2000.0
    assert served().sequence == 1000
    trust.put("ca", Bundle((ONE, TWO)))
    assert served() == BundleDocument((ONE, TWO), 2000, REFRESH_HINT_SECONDS)
    trust.put("ca", Bundle((TWO,)))
    assert served().sequence == 2001, "the clock stands"
    assert endpoint.answer().headers["content-type"] == "application/json"
