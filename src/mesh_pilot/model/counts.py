"""Numbers of things in messages for people: ``1 object``, ``2 objects``; and the first of many names."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str, many: str = "") -> str:
    """``1 endpoint``, ``2 endpoints``; ``many``: a plural that has more than an s."""
    return f"{number} {what if number == 1 else many or f'{what}s'}"


def short_rate(rate: float) -> str:
    """A rate in about three digits: ``0.17``, ``41.7``, ``1,204``."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"


def first_names(names: Sequence[str], shown: int = 1) -> str:
    """``one.shop and 3 more``."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
