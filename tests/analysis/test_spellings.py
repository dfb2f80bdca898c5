"""DENY rules that another spelling passes, as `docs/security.md` says."""

from __future__ import annotations

import pytest

from mesh_pilot.explain.analysis.analyze import analyze
from tests.support.worlds import world_of


def policy(action: str, operation: str) -> str:
    return f"""
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: p, namespace: shop}}
spec: {{action: {action}, rules: [{{to: [{{operation: {{{operation}}}}}]}}]}}
"""


def found(action: str, operation: str, form: str = "BASE") -> list[str]:
    world = world_of(policy(action, operation), mesh=f"pathNormalization: {{normalization: {form}}}")
    return [message.text for message in analyze(world) if message.type.code == "MP0028"]


@pytest.mark.parametrize(
    ("form", "passing"),
    [("BASE", "%2F in the place of /, or // in its place"), ("MERGE_SLASHES", "%2F in the place of /")],
)
def test_paths_that_are_not_normalized(form: str, passing: str) -> None:
    assert found("DENY", 'paths: ["/admin/*"]', form) == [f"/admin/* does not deny the same with {passing}"]


def test_what_has_one_spelling_is_not_named() -> None:
    assert not found("DENY", 'paths: ["/admin/*"]', "DECODE_AND_MERGE_SLASHES")
    assert not found("ALLOW", 'paths: ["/admin/*"], hosts: [secret.test]')
    assert not found("DENY", 'paths: ["*", "/"], hosts: ["secret.test*"]')
    assert not found("DENY", "hosts: [secret.test, secret.test.]")


def test_a_host_without_its_dot() -> None:
    assert found("DENY", "hosts: [secret.test]") == ["secret.test does not deny secret.test. (a dot at its end)"]
