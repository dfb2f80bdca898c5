"""Every golden scenario: what each of its proxies is sent, against what a real Istio generated for it.

A resource that differs must stand in ``differences.yaml`` with the reason, and what stands there must differ.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from support import golden

TABLE = Path(__file__).parent / "differences.yaml"


@attrs.frozen
class Difference:
    scenario: str
    proxies: str
    """Regular expression of proxy names."""
    resources: str
    """Regular expression of ``section name``, such as ``clusters outbound|80||a.example.com``."""
    reason: str

    def covers(self, scenario: str, proxy: str, resource: str) -> bool:
        return (
            re.fullmatch(self.scenario, scenario) is not None
            and re.fullmatch(self.proxies, proxy) is not None
            and re.fullmatch(self.resources, resource) is not None
        )


def table() -> list[Difference]:
    rows: list[dict[str, Any]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return [Difference(r["scenario"], r.get("proxies", ".*"), r.get("resources", ".*"), r["reason"]) for r in rows]


def differing(report: str) -> dict[str, str]:
    """The resources that a comparison's report names, each with its lines."""
    found: dict[str, str] = {}
    name = ""
    for line in report.splitlines():
        if re.match(r"(clusters|endpoints|listeners|routes|secrets) ", line):
            name = line
        if name:
            found[name] = found.get(name, "") + line + "\n"
    return found


@pytest.mark.parametrize("scenario", golden.scenarios())
def test_scenario(scenario: str) -> None:
    world = golden.load(scenario)
    rows = [d for d in table() if re.fullmatch(d.scenario, scenario)]
    used: set[Difference] = set()
    wrong: list[str] = []
    for entry in golden.proxies(scenario):
        _, _, report = golden.compare(scenario, entry, world)
        for resource, lines in differing(report).items():
            covering = [d for d in rows if d.covers(scenario, entry["name"], resource)]
            used.update(covering)
            if not covering:
                wrong.append(f"[{entry['name']}] {lines}")
    assert not wrong, "\n".join(wrong)
    stale = [d for d in rows if d not in used and d.scenario == scenario]
    assert not stale, f"no longer differs, take it out of {TABLE.name}: {stale}"
