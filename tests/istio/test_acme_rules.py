"""Rules for `acme` of the mesh config."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.model.config import ConfigError, Origin

GOOD: dict[str, Any] = {
    "directory": "https://issuer.test/dir",
    "contacts": ["mailto:ops@example.com"],
    "termsOfServiceAgreed": True,
    "credentials": [{"name": "shop/edge"}, {"name": "edge", "hosts": ["a.test"]}],
}


def problems(acme: dict[str, Any]) -> list[str]:
    try:
        decode_mesh({"acme": acme}, origin=Origin("files", "mesh.yaml"))
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_what_is_right_is_accepted() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("acme", "problem"),
    [
        ({"directory": "http://issuer.test/dir"}, "acme.directory: "),
        ({"directory": ""}, "acme.directory: "),
        ({"termsOfServiceAgreed": False}, "acme.termsOfServiceAgreed: must be true"),
        ({"contacts": ["ops@example.com"]}, "acme.contacts[0]: "),
        ({"contacts": ["mailto:a@b.test,c@d.test"]}, "acme.contacts[0]: "),
        ({"credentials": [{"name": ""}]}, "acme.credentials[0].name: "),
        ({"credentials": [{"name": "a/b/c"}]}, "acme.credentials[0].name: "),
        ({"credentials": [{"name": "/edge"}]}, "acme.credentials[0].name: "),
        ({"credentials": [{"name": "../edge"}]}, "acme.credentials[0].name: "),
        ({"credentials": [{"name": "edge"}, {"name": "edge"}]}, 'acme.credentials[1].name: "edge" is there twice'),
        ({"credentials": [{"name": "account"}]}, ""),
        ({"credentials": [{"name": "edge", "hosts": ["*.a.test"]}]}, "acme.credentials[0].hosts[0]: "),
        ({"credentials": [{"name": "edge", "hosts": ["10.0.0.1"]}]}, "acme.credentials[0].hosts[0]: "),
    ],
)
def test_a_rule_holds(acme: dict[str, Any], problem: str) -> None:
    found = problems(GOOD | acme)
    assert len(found) == bool(problem), found
    assert "".join(found).startswith(problem)
