"""``mesh-pilot rollout``: a change goes to a share of the proxies first, and on by steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from mesh_pilot.cli.lib.options import FlagType, ListOption, duration, examples, output_option
from mesh_pilot.cli.lib.rollout_types import condition, labels, share, shares
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import plain, print_value
from mesh_pilot.cli.plane.admin_flags import gives_orders
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.completion import proxies as begun
from mesh_pilot.model.counts import counted

NAMED = 20
"""Objects and proxies that are named, except in JSON and YAML."""


@click.group(
    "rollout",
    cls=CommandGroup,
    epilog=examples(
        "mesh-pilot rollout start --canary 5% --interval 5m",
        "mesh-pilot rollout status",
        "mesh-pilot rollout promote",
    ),
)
def command() -> None:
    """Give a change of configuration to a share of the proxies first, and to the others by steps.

    If one of these proxies refuses it, or their traffic gets worse than that of the others, it is taken back
    automatically: all proxies have the old objects again.

    Exits with 0; with 1 if the order makes no sense now, or the control plane does not answer; with 2 for a wrong flag.
    """


@command.command(
    "start",
    context_settings={"show_default": True},
    epilog=examples(
        "mesh-pilot rollout start --canary 5%",
        "mesh-pilot rollout start --selector app=web --interval 10m",
        "mesh-pilot rollout start --while 'errors < 1%'",
        "mesh-pilot rollout start --proxies 'web-*' --steps 10,50,100 --within 1h",
    ),
)
@click.option(
    "--canary", type=FlagType(share), metavar="PERCENT", help="The share of the proxies that is first.  [default: 5%]"
)
@click.option(
    "--selector",
    cls=ListOption,
    type=FlagType(labels),
    metavar="KEY=VALUE,...",
    help="The proxies with these labels are first.",
)
@click.option(
    "--proxies",
    multiple=True,
    metavar="PATTERN",
    shell_complete=begun,
    help="Those with such names are first.  Repeatable.",
)
@click.option(
    "--steps",
    cls=ListOption,
    type=FlagType(shares),
    metavar="PERCENT,...",
    help="The shares after that.  [default: 5,25,50,100]",
)
@click.option(
    "--by",
    type=click.Choice(["proxies", "weights"]),
    default="proxies",
    help="weights: the next change of nothing but weights of VirtualServices reaches all proxies, in steps of its way.",
)
@click.option("--interval", type=duration, default="2m", help="The time that a step takes at least.")
@click.option(
    "--while",
    "judged_by",
    type=FlagType(condition),
    metavar="CONDITION",
    default="not worse",
    help="Continue while the traffic of these proxies is so: 'not worse' than that of the others, 'errors < 1%', both "
    "joined by 'and'; acks: traffic is not judged.",
)
@click.option("--within", type=duration, help="Forget it if no change comes in this time.  [default: wait]")
@output_option
@gives_orders
def start(
    *,
    plane: PlaneClient,
    canary: float | None,
    selector: dict[str, str] | None,
    proxies: tuple[str, ...],
    steps: tuple[float, ...] | None,
    interval: float,
    by: str,
    judged_by: str,
    within: float | None,
    output: str,
) -> int:
    """Make the next change of configuration a rollout.

    All objects that change together are part of it, and those that change while it runs. Endpoints, services of
    registries, health and secrets reach all proxies at once, as ever.
    """
    if canary is not None and (selector or proxies):
        raise click.UsageError("--canary and --selector or --proxies exclude each other")
    plan = {"canary": canary, "labels": selector, "names": list(proxies), "interval": interval, "within": within}
    return _print(
        plane.post("/rollout", {**plan, "by": by, "judged_by": judged_by, "steps": list(steps or ())}), output
    )


@command.command("status", epilog=examples("mesh-pilot rollout status", "mesh-pilot rollout status -o json"))
@output_option
@gives_orders
def status(*, plane: PlaneClient, output: str) -> int:
    """Show the rollout: its step, its proxies and objects, and what it waits for."""
    return _print(plane.get("/rollout"), output)


@command.command("pause", epilog=examples("mesh-pilot rollout pause"))
@output_option
@gives_orders
def pause(*, plane: PlaneClient, output: str) -> int:
    """Stay at the present step. A refusal takes the change back all the same."""
    return _print(plane.post("/rollout/pause"), output)


@command.command("resume", epilog=examples("mesh-pilot rollout resume"))
@output_option
@gives_orders
def resume(*, plane: PlaneClient, output: str) -> int:
    """Go on after a pause, from the beginning of the step."""
    return _print(plane.post("/rollout/resume"), output)


@command.command("promote", epilog=examples("mesh-pilot rollout promote"))
@output_option
@gives_orders
def promote(*, plane: PlaneClient, output: str) -> int:
    """Give the new objects to all proxies now, also those that were taken back."""
    return _print(plane.post("/rollout/promote"), output, ended="promoted: all proxies get the new objects")


@command.command("abort", epilog=examples("mesh-pilot rollout abort"))
@output_option
@gives_orders
def abort(*, plane: PlaneClient, output: str) -> int:
    """Take the change back: all proxies have the old objects until one of these changes again."""
    return _print(plane.post("/rollout/abort"), output, ended="aborted before any change: the rollout is off")


def _print(found: Any, output: str, *, ended: str = "") -> int:
    """``ended``: what an order has done that leaves no rollout."""
    if ended and output == "text" and found["phase"] == "off":
        click.echo(ended)
    elif output != "text":
        print_value(found, output)
    else:
        for line in status_lines(found):
            click.echo(plain(line))
    return 0


def status_lines(found: Any) -> Iterator[str]:
    """The answer of the API in lines."""
    phase = found["phase"]
    if phase == "off":
        yield "no rollout: changes go to all proxies at once"
        return
    steps = ", ".join("selected" if each == 0 else f"{each:g}%" for each in found["steps"])
    if phase == "armed":
        what = "change of weights goes to all proxies" if found["by"] == "weights" else "change goes to the proxies"
        yield f"armed: the next {what} by steps ({steps}; {found['interval']:g} seconds each)"
        return
    if phase == "taken back":
        yield f"taken back: {found['reason']}"
        yield "all proxies have the old objects until one of these changes, or mesh-pilot rollout promote"
    else:
        yield f"{phase}: step {found['step']} of {len(found['steps'])} ({steps})"
        yield from _canary_lines(found)
    yield f"  {counted(found['changes'], 'object')}:"
    for each in found["objects"][:NAMED]:
        where = f" ({each['where']})" if each["where"] else ""
        note = ", taken back" if each["taken_back"] and phase != "taken back" else ""
        yield f"    {each['object']}{where}{note}"
    if found["changes"] > NAMED:
        yield "    ... (see -o json)"


def _canary_lines(found: Any) -> Iterator[str]:
    """The proxies of a rollout that runs, and what it waits for."""
    canary = found["canary"]
    if found["by"] == "weights":
        yield f"  all proxies have weights {found['share']:g} % of the way"
    yield f"  {canary['connected']} of {found['proxies']} proxies have it, {canary['accepted']} accepted it: " + (
        ", ".join(canary["names"][:NAMED]) + (", ..." if canary["connected"] > NAMED else "")
    )
    if found["waits_for"]:
        yield f"  waits for {found['waits_for']}"
    if found["traffic"]:
        yield f"  {found['traffic']}"
