"""Random patches of EnvoyFilters, from the descriptors of Envoy's own messages."""

from __future__ import annotations

from typing import Any

from tests.door.values import Values


def random_patch(values: Values) -> dict[str, Any]:
    """A patch as people write it."""
    return {
        "applyTo": "CLUSTER",
        "match": {"context": "ANY"},
        "patch": {"operation": "MERGE", "value": {"connect_timeout": values.scalar("duration", "", "")}},
    }
