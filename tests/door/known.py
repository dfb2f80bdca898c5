"""Refusals that no rule at the door can prevent, each with its reason. Not for rules that are merely missing."""

from __future__ import annotations

import re
from collections.abc import Mapping

KNOWN: Mapping[str, str] = {}
"""A regular expression that a finding's cause contains, and the reason."""


def reason_known(cause: str) -> str:
    """The reason why a finding is no missing rule; empty if it is one."""
    return next((reason for pattern, reason in KNOWN.items() if re.search(pattern, cause)), "")
