"""``mesh-pilot suggest``: objects made of the traffic that proxies count, to be looked at and applied by hand."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from mesh_pilot.cli.explain.plan import PICTURE_SECONDS
from mesh_pilot.cli.lib.options import SectionedCommand, days_option, examples
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.cli.plane.completion import namespaces

if TYPE_CHECKING:
    from mesh_pilot.explain.plan.picture import ConnectedProxy, PlanePicture
    from mesh_pilot.explain.suggestions.costs import SidecarCost
    from mesh_pilot.explain.suggestions.observed import Observed, Suggestions

F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    "suggest",
    cls=CommandGroup,
    epilog=examples("mesh-pilot suggest sidecars -n shop > sidecars.yaml", "mesh-pilot plan sidecars.yaml"),
)
def command() -> None:
    """Write objects that follow from the traffic that proxies have counted. Nothing is applied.

    What was not called while it was counted is taken to be unneeded: a job that runs once a month needs a month.
    """


def _options(function: F) -> F:
    """The flags of all suggestions."""
    for option in (
        asks_a_plane,
        click.option("--output", "-o", type=click.Choice(["yaml", "json"]), default="yaml", help="How to print it."),
        days_option,
        click.option(
            "--namespace",
            "-n",
            default="",
            metavar="NAMESPACE",
            shell_complete=namespaces,
            help="Only for workloads of this namespace.",
        ),
    ):
        function = option(function)
    return function


@command.command(
    "sidecars",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot suggest sidecars > sidecars.yaml",
        "mesh-pilot suggest sidecars -n shop --days 30 -o json",
    ),
)
@_options
def sidecars(plane: PlaneClient, *, namespace: str, days: int, output: str) -> int:
    """Write a Sidecar for each workload that imports what it called.

    It also imports the hosts of VirtualServices that route there, and what no proxy counts. A
    comment says what each proxy has before and after. Sidecars of yours are left as they are.

    Exits with 0; with 1 if no traffic has been counted, or the control plane does not answer; with 2 for a wrong flag.
    """
    from mesh_pilot.explain.suggestions.costs import costs
    from mesh_pilot.explain.suggestions.sidecars import suggest_sidecars

    seen = _SuggestionInputs.of(plane, days)
    found = suggest_sidecars(seen.view, seen.proxies, seen.observed, namespace)
    _print(found, seen, output, costs(seen.picture, seen.proxies, found.objects, seen.observed))
    return 0


@command.command(
    "policies",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot suggest policies -n shop > policies.yaml",
        "mesh-pilot suggest policies --days 30 -o json",
    ),
)
@_options
def policies(plane: PlaneClient, *, namespace: str, days: int, output: str) -> int:
    """Write an AuthorizationPolicy for each workload that was called, which allows its callers, by port.

    Callers are told by their principals. A port that is called without mTLS, or from outside the mesh, stays open, and
    a comment says so. Methods and paths are not counted. A workload with an ALLOW policy gets no other.

    Exits with 0; with 1 if no traffic has been counted, or the control plane does not answer; with 2 for a wrong flag.
    """
    from mesh_pilot.explain.suggestions.policies import suggest_policies

    seen = _SuggestionInputs.of(plane, days)
    _print(suggest_policies(seen.view, seen.proxies, seen.observed, namespace), seen, output, {})
    return 0


@attrs.frozen
class _SuggestionInputs:
    """All that suggestions are made of."""

    picture: PlanePicture
    proxies: list[ConnectedProxy]
    observed: Observed
    view: Any

    @classmethod
    def of(cls, plane: PlaneClient, days: int) -> _SuggestionInputs:
        """Asks a control plane. Raises ClickException."""
        from mesh_pilot.cli.lib.logs import LogFormat, LogLevels, configure
        from mesh_pilot.explain.plan.past_world import past_world
        from mesh_pilot.explain.plan.picture import PictureError, read_picture, read_proxies
        from mesh_pilot.explain.suggestions.observed import ObservedError, read_observed

        configure(LogLevels(logging.ERROR), LogFormat.TEXT, sys.stderr)
        patient = attrs.evolve(plane, timeout_seconds=PICTURE_SECONDS)
        try:
            observed = read_observed(patient.get("/picture/traffic", days=days))
            picture, proxies = read_picture(patient.get("/picture")), read_proxies(patient.get("/picture/proxies"))
        except (PictureError, ObservedError) as error:
            raise click.ClickException(f"cannot read what {plane.address} answers: {error}") from None
        if observed is None:
            text = "no traffic has been counted yet: no proxy reports any (docs/traffic.md says what counts)"
            raise click.ClickException(text)
        return cls(picture, proxies, observed, past_world(picture.items, picture.settings).view)


def _print(found: Suggestions, seen: _SuggestionInputs, output: str, found_costs: Mapping[str, SidecarCost]) -> None:
    from mesh_pilot.explain.suggestions.text import document, lines, warnings
    from mesh_pilot.explain.suggestions.workloads import silent_proxies

    silent = silent_proxies(seen.proxies, seen.observed)
    for sentence in warnings(seen.observed, silent):
        click.echo(f"note: {sentence}", err=True)
    if output == "json":
        click.echo(json.dumps(document(found, seen.observed, silent, found_costs), indent=2, ensure_ascii=False))
    else:
        for line in lines(found, seen.observed, silent, found_costs):
            click.echo(line)
