"""Cells of tables that tell traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def success(counts: Mapping[str, Any]) -> str:
    """The share of tries that did not fail, for people; empty without a try, ? where failures are not known."""
    if not counts["tries"]:
        return ""
    if counts["rate"] is None:
        return "?"
    share = 100 * (1 - counts["rate"])
    return f"{min(share, 99.99) if counts['failures'] else share:.2f}%"
