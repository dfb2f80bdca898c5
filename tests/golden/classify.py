"""Every difference from what a real Istio generates, by its cause: how many resources are equal, how many explained.

    python -m tests.golden.classify                        # all scenarios
    python -m tests.golden.classify app-shop-canary        # some of them

Each proxy is served by a stream, State of the World and Delta. A line for each resource that differs names the causes
in ``differences.yaml``; what no row explains follows in full. The exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import yaml

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Variant
from tests.golden import adsdump
from tests.support import golden
from tests.support.envoy_model import EnvoyModel

TABLE = Path(__file__).parent / "differences.yaml"
RECORDED_BY_1_14 = "recorded-by-1.14"
"""The cause of differences that say nothing about Istio 1.29.1."""

EQUAL, EXPLAINED, UNEXPLAINED, OLDER = "equal", "explained", "unexplained", "older"


@attrs.frozen(eq=False)
class Row:
    scenario: str
    proxies: tuple[str, ...]
    resources: tuple[str, ...]
    """``section name``, such as ``clusters outbound|80||a.example.com``."""
    path: str
    """``[*]`` stands for any index of a list; empty for a resource that only one side has."""
    istio: Any
    ours: Any
    cause: str

    def covers(self, proxy: str, difference: golden.Difference) -> bool:
        return (
            proxy in self.proxies
            and difference.resource in self.resources
            and re.fullmatch(re.escape(self.path).replace(r"\[\*\]", r"\[\d+\]"), difference.path) is not None
            and difference.istio == self.istio
            and difference.ours == self.ours
        )


def read_rows(document: Mapping[str, Any]) -> Iterator[Row]:
    for entry in document["rows"]:
        for at in entry["differs"]:
            assert "istio" in at or "ours" in at, f"neither side has a value: {at}"
            yield Row(
                entry["scenario"],
                _as_tuple(at["proxy"]),
                _as_tuple(at["resource"]),
                at.get("path", ""),
                at.get("istio", golden.ABSENT),
                at.get("ours", golden.ABSENT),
                entry["cause"],
            )


def _as_tuple(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@cache
def causes() -> dict[str, str]:
    """The reason of each cause."""
    found: dict[str, str] = _document()["causes"]
    return found


@cache
def table() -> tuple[Row, ...]:
    return tuple(read_rows(_document()))


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return document


@attrs.frozen
class Judged:
    """One resource of one proxy, and why it differs."""

    proxy: str
    resource: str
    rows: tuple[Row, ...] = ()
    """All that explain something of it."""
    unexplained: tuple[golden.Difference, ...] = ()

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.cause for row in self.rows))

    @property
    def state(self) -> str:
        if self.unexplained:
            return UNEXPLAINED
        return OLDER if RECORDED_BY_1_14 in self.causes else EXPLAINED if self.rows else EQUAL


def judged(rows: Iterable[Row], proxy: str, resource: str, differences: Iterable[golden.Difference]) -> Judged:
    covering = [(difference, [row for row in rows if row.covers(proxy, difference)]) for difference in differences]
    explaining = (row for _, found in covering for row in found)
    return Judged(proxy, resource, tuple(dict.fromkeys(explaining)), tuple(d for d, found in covering if not found))


def classified(scenario: str, variant: Variant) -> list[Judged]:
    """All resources of a scenario's proxies, as they are served."""
    world = golden.load(scenario)
    rows = [row for row in table() if row.scenario == scenario]
    return [
        judged(rows, entry["name"], resource, differences)
        for entry in golden.proxies(scenario)
        for resource, differences in golden.compared(
            golden.expected(scenario, entry), served(world, golden.proxy_of(entry), variant, entry.get("grpc", ()))
        )
    ]


def served(world: World, proxy: Proxy, variant: Variant, asked: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """What a proxy is sent on a stream, as a dump. ``asked``: listeners that a proxyless gRPC client asks for."""
    adsdump.load_all_protos()
    model = EnvoyModel(WorldCatalog(world), proxy, variant, tuple(asked))
    model.settle()
    expander = adsdump.Expander()
    document = {
        section: {
            name: expander.msg(adsdump.find_class(kind).FromString(resource.body))
            for name, resource in model.has[kind].items()
        }
        for section, kind in golden.SECTIONS.items()
        if section != "secrets"  # Istio's are its agent's
    }
    model.close()
    whole: dict[str, dict[str, Any]] = json.loads(json.dumps(document))
    return whole


def unused(rows: Iterable[Row], found: Iterable[Judged]) -> list[str]:
    """What in rows does not differ (any more)."""
    used = {(row, each.proxy, each.resource) for each in found for row in each.rows}
    return [
        f"{row.path or 'all'} of {resource} for {proxy}"
        for row in rows
        for proxy in row.proxies
        for resource in row.resources
        if (row, proxy, resource) not in used
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*")
    names = parser.parse_args().scenario or golden.scenarios()
    found = {(name, variant): classified(name, variant) for name in names for variant in Variant}
    touched: dict[str, Counter[Variant]] = defaultdict(Counter)
    sums: dict[Variant, Counter[str]] = {variant: Counter() for variant in Variant}
    for (name, variant), resources in found.items():
        for each in resources:
            sums[variant][each.state] += 1
            for cause in each.causes:
                touched[cause][variant] += 1
            if each.state != EQUAL:
                print(f"{variant} {name} {each.proxy} {each.resource}: {', '.join(each.causes) or '-'}")
            for difference in each.unexplained:
                print(f"    {difference.line}")
    for cause in causes():
        print(f"{cause:18}", *(f"{variant} {touched[cause][variant]}" for variant in Variant))
    for variant, states in sums.items():
        older, total = states.pop(OLDER), states.total()
        share = f"{states[EQUAL]} of {total} equal ({states[EQUAL] / max(total, 1):.1%})"
        rest = ", ".join(f"{states[state]} {state}" for state in (EXPLAINED, UNEXPLAINED))
        print(f"{variant}: {share}, {rest}; {older} more differ from a recording of 1.14.6")
    return 1 if any(states[UNEXPLAINED] for states in sums.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
