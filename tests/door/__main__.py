"""`python -m tests.door`: the search by hand, for minutes or hours. Ends with 1 if anything was found."""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click
import structlog
import trio
import yaml

from tests.door.envoys import open_door
from tests.door.objects import NAMES, Candidate
from tests.door.search import Finding, Totals, search


def described(finding: Finding) -> str:
    """A finding as Markdown."""
    text = _yaml(finding.objects)
    if finding.before:
        text = f"# first\n{_yaml(finding.before)}# then\n{text}"
    note = "" if finding.is_repeated else "\n(once; it was not refused again)\n"
    words = finding.words.strip()
    words = words if len(words) <= 700 else f"{words[:600]} ... {words[-100:]}"
    lines = [line if len(line) <= 400 else f"{line[:300]} ...({len(line)} characters)" for line in text.splitlines()]
    return f"## {finding.cause}\n{note}\n{finding.proxy}: {words}\n\n```yaml\n" + "\n".join(lines) + "\n```\n"


def _yaml(objects: Iterable[Candidate]) -> str:
    documents = [candidate.document for candidate in objects]
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=120)


async def run(kinds: tuple[str, ...], minutes: float, seed: int, size: int, out: Path | None) -> int:
    """Search for so many minutes; the number of findings."""
    totals, findings = Totals(), 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        with trio.move_on_after(minutes * 60):
            async with open_door(Path(folder), seed) as door:
                async for finding in search(door, random.Random(seed), kinds, size=size, totals=totals):
                    findings += 1
                    print(described(finding), flush=True)
                    if out is not None:
                        with out.open("a") as file:
                            print(described(finding), file=file)
    seconds = time.monotonic() - began
    print(f"seed {seed}: {totals.examples} examples, {totals.objects} objects in {seconds:.0f} s;", end=" ")
    print(f"{totals.apart} refusals that no rule is for; {findings} findings")
    for cause, count in sorted(totals.seen.items(), key=lambda row: -row[1]):
        print(f"{count:6}  {cause}")
    return findings


@click.command()
@click.option("--minutes", default=10.0, help="How long to search.")
@click.option("--seed", type=int, help="Of the random objects; random itself unless given.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(NAMES), help="Only these kinds; may be repeated.")
@click.option("--size", default=6, help="The most objects of an example.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="A file to append findings to.")
def main(kinds: tuple[str, ...], minutes: float, seed: int | None, size: int, out: Path | None) -> None:
    """Show random objects that validation accepts to real Envoys, and print what those refuse."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    sys.exit(1 if trio.run(partial(run, kinds or NAMES, minutes, seed, size, out)) else 0)


if __name__ == "__main__":
    main()
