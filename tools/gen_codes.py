"""Makes ``explain/analysis/codes.py`` and the sections of ``docs/analysis.md`` from ``codes.yaml``:
``python -m tools.gen_codes``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("codes.yaml")
MODULE = ROOT / "src/mesh_pilot/explain/analysis/codes.py"
PAGE = ROOT / "docs/analysis.md"

HEAD = '''"""The types of messages, made from tools/codes.yaml by ``python -m tools.gen_codes``."""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mesh_pilot.explain.analysis.findings import Level, MessageType

'''
TAIL = '''
ALL = [each for each in [*globals().values()] if isinstance(each, MessageType)]
CODES: Mapping[str, MessageType] = MappingProxyType({each.code: each for each in ALL})
"""All types by code."""
'''

Entry = Mapping[str, Any]


def entries() -> list[Entry]:
    """The types, in the order of the file. Raises ValueError if two have one code."""
    found: list[Entry] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    for key in ("code", "constant", "name"):
        values = [entry[key] for entry in found]
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise ValueError(f"{TABLE.name}: {key} {', '.join(twice)} is there twice")
    return found


def module(found: Iterable[Entry]) -> str:
    """The text of ``codes.py``."""
    lines = []
    for entry in found:
        texts = (json.dumps(entry[key], ensure_ascii=False) for key in ("message", "description", "fix"))
        first = f'"{entry["code"]}", "{entry["name"]}", Level.{entry["level"].upper()}'
        lines.append(f"{entry['constant']} = MessageType({', '.join((first, *texts))})\n")
    return HEAD + "".join(lines) + TAIL


def page(text: str, found: Iterable[Entry]) -> str:
    """The page with new sections. What stands before them is kept."""
    sections: dict[str, list[str]] = {"IST": [], "MP0": []}
    for entry in found:
        about = f"**{entry['name']}** ({entry['level']}). {entry['description']}"
        if entry.get("shown"):
            about += f" *Example:* {'; '.join(changes(entry['example']))}."
        sections[entry["code"][:3]].append(f"### {entry['code']}\n\n{about}\n")
    before = text[: text.index("## Istio's codes\n")]
    istios, ours = "\n".join(sections["IST"]), "\n".join(sections["MP0"])
    return f"{before}## Istio's codes\n\n{istios}\n## Codes of mesh-pilot\n\n{ours}"


def changes(example: str) -> list[str]:
    """The lines of an example that its comments change, with what they should be."""
    found = []
    for line in example.splitlines():
        if change := re.fullmatch(r"\s*(?:- )?(.*?)\s*# (fix|add): (?:- )?(.*)", line):
            before, verb, after = change.groups()
            if verb == "add":
                found.append(f"add `{after}`")
            else:
                found.append(f"remove `{before}`" if after == "remove" else f"`{before}` becomes `{after}`")
    return found


if __name__ == "__main__":
    MODULE.write_text(module(entries()), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), entries()), encoding="utf-8")
