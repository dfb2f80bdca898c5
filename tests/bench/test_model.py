"""The documentation's page about large meshes: its tables are what ``python -m bench model`` prints."""

from __future__ import annotations

import re
from pathlib import Path

from bench.model import CONSTANTS, examples, rows

PAGE = (Path(__file__).parents[2] / "docs" / "large-meshes.md").read_text(encoding="utf-8")


def test_the_page_has_the_tables_that_the_command_prints() -> None:
    measured = re.findall(r"^\| `(\w+)` \| ([\d.,]+) ", PAGE, re.MULTILINE)
    constants = {name: float(value.replace(",", "")) for name, value in measured}
    assert list(constants) == list(CONSTANTS)
    for table in (rows(constants), examples(constants)):
        assert "\n".join(table) in PAGE
