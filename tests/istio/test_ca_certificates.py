"""Rules for ``caCertificates`` of the MeshConfig."""

from __future__ import annotations

import pytest

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigCertificateData
from mesh_pilot.istio.rules.mesh_config import check_ca_certificates
from tests.support.roots import make_root

ROOT = make_root("one").pem.decode()


def problems(**fields: object) -> list[str]:
    data = MeshConfigCertificateData(**fields)  # type: ignore[arg-type]
    return [f"{p.path} {p.reason}" for p in check_ca_certificates("ca[0]", data)]


def test_roots_in_pem_and_bundles_over_https_are_accepted() -> None:
    assert problems(pem=ROOT, trust_domains=["east.test", "10.east"]) == []
    for url in ("https://east.test/b", "east.test:8443/b", "http://127.0.0.1:8080/spiffe/bundle", "http://[::1]:1/"):
        assert problems(spiffe_bundle_url=url) == [], url


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "ca[0] must have pem or spiffeBundleUrl"),
        ({"pem": "x"}, "ca[0].pem is not PEM"),
        ({"pem": make_root("leaf", is_ca=False).pem.decode()}, "ca[0].pem has a certificate (CN=leaf) that is not"),
        ({"pem": ROOT + "-----BEGIN PRIVATE KEY-----"}, "ca[0].pem has a private key"),
        ({"spiffe_bundle_url": "http://east.test/b"}, "ca[0].spiffeBundleUrl must be https"),
        ({"spiffe_bundle_url": "file:///etc/b"}, "ca[0].spiffeBundleUrl has no host"),
        ({"spiffe_bundle_url": "https://a:b@east.test/b"}, "ca[0].spiffeBundleUrl must not have a user"),
        ({"spiffe_bundle_url": "https://east.test:port/b"}, "ca[0].spiffeBundleUrl is not a URL"),
        ({"pem": ROOT, "trust_domains": ["*"]}, 'ca[0].trustDomains[0] "*" is not a trust domain'),
    ],
)
def test_others_are_refused(fields: dict[str, object], reason: str) -> None:
    (problem,) = problems(**fields)
    assert problem.startswith(reason)
