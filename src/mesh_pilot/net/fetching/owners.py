"""On whose behalf a task asks servers of others."""

from __future__ import annotations

from contextvars import ContextVar

OWNER: ContextVar[str] = ContextVar("owner of a fetch", default="")
"""The namespace whose object named the server; empty: the operator's. What is scarce is shared out by it."""
