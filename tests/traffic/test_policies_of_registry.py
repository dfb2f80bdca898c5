"""Policies that select what the registry says of a workload hold, though its Envoy says less of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.guarded import ADDRESS, Guarded, guarded
from tests.support.manifests import manifest

pytestmark = pytest.mark.envoy

DENY = manifest(
    "AuthorizationPolicy",
    "core",
    '{selector: {matchLabels: {tier: core}}, action: DENY, rules: [{to: [{operation: {paths: ["/admin*"]}}]}]}',
)
STRICT = manifest("PeerAuthentication", "core", "{selector: {matchLabels: {tier: core}}, mtls: {mode: STRICT}}")


def entry(labels: str) -> str:
    return manifest("WorkloadEntry", "front", f"{{address: {ADDRESS}, serviceAccount: front, labels: {labels}}}")


async def seen(guard: Guarded) -> list[int]:
    """The statuses of two paths for a caller with a certificate; and of a caller without one, 0 if it is cut off."""
    try:
        plain = await guard.ask("/", plain=True)
    except httpx.TransportError:
        plain = 0
    return [await guard.ask("/"), await guard.ask("/admin/x"), plain]


@pytest.mark.smoke
@pytest.mark.parametrize("delta", [True, False], ids=["delta", "sotw"])
async def test_deny_and_strict_hold_by_a_label_that_only_the_registry_has(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool
) -> None:
    core, plain = entry("{app: front, tier: core}"), entry("{app: front}")
    async with guarded(tmp_path, free_ports(4), DENY, STRICT, core, delta=delta) as guard:
        assert await seen(guard) == [200, 403, 0]
        await guard.apply(DENY, STRICT, plain)
        assert await seen(guard) == [200, 200, 200]
        await guard.apply(DENY, STRICT, core)
        assert await seen(guard) == [200, 403, 0]
