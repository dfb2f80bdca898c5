"""``mesh-pilot admin profile``: where a running control plane spends its time, and what takes its memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from mesh_pilot.cli.lib.options import examples
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import table
from mesh_pilot.cli.plane.admin_flags import gives_orders
from mesh_pilot.cli.plane.client import PlaneClient

FORMATS = ("text", "collapsed", "speedscope", "json")

SHOWN = 20
"""Functions, and lines of code, that are printed."""

_SECONDS = click.option(
    "--seconds", type=click.IntRange(1, 60), default=10, show_default=True, help="The length of the profile."
)


@click.group("profile", cls=CommandGroup)
def profile() -> None:
    """Profile a running control plane. It costs nothing while none is made. It needs the role operate."""


@profile.command(
    "cpu",
    epilog=examples(
        "mesh-pilot admin profile cpu",
        "mesh-pilot admin profile cpu --seconds 30 --format speedscope --into plane.speedscope.json",
        "mesh-pilot admin profile cpu --format collapsed | flamegraph.pl > plane.svg",
    ),
)
@gives_orders
@_SECONDS
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="How to write it."
)
@click.option("--into", type=click.Path(path_type=Path), help="Write it to this file.")
def cpu(*, plane: PlaneClient, seconds: int, form: str, into: Path | None) -> None:
    """Sample what it does, some 200 times a second, which costs 2 to 3 % of a core.

    text: the functions in which it was seen most, with and without those that they called. collapsed: a line for each
    stack, for flamegraph.pl and inferno. speedscope: JSON for https://www.speedscope.app. With several workers it is
    the first one's.

    Exits with 0, or 1 if the control plane does not answer or another profile is being made.
    """
    found = _waiting(plane, seconds).post("/profile/cpu", seconds=seconds)
    _write(WRITERS[form](found), into)


@profile.command("memory", epilog=examples("mesh-pilot admin profile memory --seconds 30"))
@gives_orders
@_SECONDS
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
@click.option("--into", type=click.Path(path_type=Path), help="Write it to this file.")
def memory(*, plane: PlaneClient, seconds: int, output: str, into: Path | None) -> None:
    """Trace where memory is taken and not given back. The control plane is slower while this lasts.

    Exits with 0, or 1 if the control plane does not answer or another profile is being made.
    """
    found = _waiting(plane, seconds).post("/profile/memory", seconds=seconds)
    _write(json.dumps(found, indent=2) + "\n" if output == "json" else memory_text(found), into)


def _waiting(plane: PlaneClient, seconds: int) -> PlaneClient:
    return attrs.evolve(plane, timeout_seconds=seconds + 30.0)


def _write(text: str, into: Path | None) -> None:
    if into is None:
        click.echo(text, nl=False)
        return
    try:
        into.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{into}: can't be written: {error.strerror}") from None


def cpu_text(found: Mapping[str, Any]) -> str:
    """The functions with the most samples."""
    own: dict[str, int] = {}
    all_in: dict[str, int] = {}
    for stack, count in found["stacks"].items():
        frames = stack.split(";")[1:] or [stack]
        own[frames[-1]] = own.get(frames[-1], 0) + count
        for frame in set(frames):
            all_in[frame] = all_in.get(frame, 0) + count
    busy = sum(found["stacks"].values()) or 1
    rows = [("SELF", "WITH CALLS", "FUNCTION")]
    for name in sorted(own, key=lambda each: (-own[each], each))[:SHOWN]:
        rows.append((f"{100 * own[name] / busy:.1f} %", f"{100 * all_in[name] / busy:.1f} %", name))
    head = f"{found['samples']} samples in {found['seconds']} s, {found['idle']} of them idle; "
    head += f"{found['cpu_seconds']} s of CPU time in the process"
    return "\n".join([head, *(table(rows) if len(rows) > 1 else []), ""])


def memory_text(found: Mapping[str, Any]) -> str:
    """The lines of code that took the most."""
    rows = [("BYTES", "BLOCKS", "LINE")]
    rows += [(f"{each['bytes']:,}", f"{each['blocks']:,}", each["line"]) for each in found["lines"][:SHOWN]]
    head = f"{found['taken_bytes']:,} bytes taken in {found['seconds']} s and kept, {found['peak_bytes']:,} at most; "
    head += f"the process has {found['resident_bytes']:,} ({found['resident_bytes_before']:,} before)"
    return "\n".join([head, *(table(rows) if len(rows) > 1 else []), ""])


def speedscope(found: Mapping[str, Any]) -> dict[str, Any]:
    """The profile in speedscope's file format: a profile for each thread."""
    frames: dict[str, int] = {}
    threads: dict[str, tuple[list[list[int]], list[float]]] = {}
    for stack, count in found["stacks"].items():
        thread, *names = stack.split(";")
        samples, weights = threads.setdefault(thread, ([], []))
        samples.append([frames.setdefault(name, len(frames)) for name in names or [thread]])
        weights.append(count * found["interval_seconds"])
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": thread,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
            for thread, (samples, weights) in threads.items()
        ],
    }


def collapsed(found: Mapping[str, Any]) -> str:
    """A line for each stack with the number of its samples."""
    return "".join(f"{stack} {count}\n" for stack, count in found["stacks"].items())


WRITERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "text": cpu_text,
    "collapsed": collapsed,
    "speedscope": lambda found: json.dumps(speedscope(found)),
    "json": lambda found: json.dumps(found, indent=2) + "\n",
}
