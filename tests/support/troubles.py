"""The lines that docs/troubleshooting.md quotes: ``...`` there is what differs from case to case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


def is_quoted(line: str | Mapping[str, Any]) -> bool:
    """True if the page has a line on standard error, or of the log: its event, reason and advice."""
    if not isinstance(line, str):
        fields = "".join(f' {name}="{line[name]}"' for name in ("reason", "advice") if name in line)
        line = f'msg="{line["event"]}"{fields}'
    quoted = (each.strip() for each in PAGE.read_text(encoding="utf-8").splitlines() if each.startswith("    "))
    return any(re.fullmatch(re.escape(each).replace(r"\.\.\.", ".*"), line) for each in quoted)
