"""The command: see the package."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import attrs

import tools.compare_bytes
from bench.server import ROOT, ServerError, checkout
from tests.golden import adsdump
from tests.support import golden
from tools.compare_bytes.client import Received
from tools.compare_bytes.meshes import Case, golden_cases, key_server, kubernetes, random_cases
from tools.compare_bytes.revision import Revision, RevisionError

ABSENT = "(absent)"


def differences(old: Received, new: Received) -> Iterator[tuple[tuple[str, str], str]]:
    """The resources that differ, by type and name, each with a sentence that says how."""
    for key in sorted(old.keys() | new.keys()):
        if key not in new:
            yield key, "is sent by the old revision only"
        elif key not in old:
            yield key, "is sent by the new revision only"
        elif old[key] != new[key]:
            yield key, explained(key[0], old[key], new[key])


def explained(type_url: str, old: bytes, new: bytes) -> str:
    """The first path at which two resources differ, with both values."""
    expander, message = adsdump.Expander(), adsdump.find_class(type_url)
    found = first_difference(expander.msg(message.FromString(old)), expander.msg(message.FromString(new)))
    if found:
        return found
    at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    around = slice(max(at - 20, 0), at + 20)
    return f"the same content in another encoding, from byte {at} on: {old[around]!r} -> {new[around]!r}"


def first_difference(old: Any, new: Any, path: str = "") -> str:
    """``path: old value -> new value`` of two documents; empty if they are equal."""
    if old == new:
        return ""
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(k for k in [*old, *new] if old.get(k, ABSENT) != new.get(k, ABSENT))
        return first_difference(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{key}" if path else key)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        index = next(n for n, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
        return first_difference(old[index], new[index], f"{path}[{index}]")
    return f"{path}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = value if value is ABSENT else json.dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


@attrs.define
class Report:
    """What was compared so far."""

    cases: int = 0
    resources: Counter[str] = attrs.Factory(Counter)
    """By type, of the new revision."""
    found: dict[str, list[str]] = attrs.Factory(dict)
    """Differences, and for each the places where it is."""

    def add(self, case: Case, old: dict[str, Received], new: dict[str, Received]) -> None:
        self.cases += 1
        for proxy, received in new.items():
            self.resources.update(type_url.rpartition(".")[2] for type_url, _ in received)
            for (type_url, name), how in differences(old[proxy], received):
                self.note(f"{type_url.rpartition('.')[2]} {how}", f"{case.name}, proxy {proxy}: {name}")

    def note(self, how: str, where: str) -> None:
        if how not in self.found:
            print(f"DIFFERENCE {where}\n    {how}", flush=True)
        self.found.setdefault(how, []).append(where)


def compare(cases: Iterable[Case], old: Revision, new: Revision, authority: Path) -> Report:
    """Have both revisions render each case. Raises RevisionError if neither renders any."""
    report, failures = Report(), []
    for case in cases:
        rendered, errors = [], []
        for revision in (old, new):
            try:
                rendered.append(revision.render(case, authority))
            except RevisionError as error:
                errors.append(f"{revision.name}: {error}")
        if len(errors) == 2:
            failures.append(f"{case.name}: {errors[1]}")
        elif errors:
            report.note(f"only one revision runs: {errors[0]}", case.name)
        else:
            report.add(case, *rendered)
    for failure in failures:
        print(f"neither revision runs {failure}")
    if not report.resources:
        raise RevisionError("nothing was compared")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.compare_bytes",
        description=tools.compare_bytes.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--old", required=True, help="git revision, or the folder of a checkout")
    parser.add_argument(
        "--new", default=str(ROOT), help="git revision, or the folder of a checkout (default: this one)"
    )
    parser.add_argument("--meshes", type=int, default=200, metavar="N", help="random meshes (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them (default: 0)")
    parser.add_argument("--scenario", action="append", help="only this golden scenario; may be repeated")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adsdump.load_all_protos()
    began = time.monotonic()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bytes-")))
        proxy = stack.enter_context(key_server())
        try:
            old = stack.enter_context(closing(Revision(args.old, _tree(stack, args.old), scratch / "old", proxy)))
            new = stack.enter_context(closing(Revision(args.new, _tree(stack, args.new), scratch / "new", proxy)))
            galley = stack.enter_context(kubernetes(scratch / "protos"))
            scenarios = args.scenario or golden.scenarios()
            cases = [*golden_cases(scratch / "golden", scenarios, galley)]
            cases += random_cases(scratch / "random", range(args.seed, args.seed + args.meshes))
            report = compare(cases, old, new, scratch / "ca")
        except (RevisionError, ServerError) as error:
            print(f"compare_bytes: {error}", file=sys.stderr)
            return 2
    counts = ", ".join(f"{count} {kind}" for kind, count in report.resources.most_common())
    print(f"{report.cases} meshes in {time.monotonic() - began:.0f} s: {counts}")
    for how, places in sorted(report.found.items(), key=lambda found: -len(found[1])):
        print(f"{len(places)} times, first in {places[0]}: {how}")
    print(f"{sum(map(len, report.found.values()))} differences" if report.found else "no differences")
    return 1 if report.found else 0


def _tree(stack: ExitStack, name: str) -> Path:
    """The checkout of a revision; one that is there already is used as it is."""
    folder = Path(name).resolve()
    return folder if (folder / "src" / "mesh_pilot").is_dir() else stack.enter_context(checkout(name)).resolve()


if __name__ == "__main__":
    sys.exit(main())
