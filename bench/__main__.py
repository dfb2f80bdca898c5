"""The bench's command line: ``python -m bench --help``."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Console

from bench import cases, generate, plot, report
from bench.cases import FEW
from bench.clients import PARTS
from bench.clients import clients as many_clients
from bench.consul_size import Size, consul_size
from bench.crew import SWARM, SwarmError
from bench.events import EVENTS
from bench.fresh import fresh as come_anew
from bench.herd import herd as come_back
from bench.load_program import load_program as built_load_program
from bench.mesh import Mesh
from bench.model import examples, rows
from bench.model import model as measure_constants
from bench.report import Measurement
from bench.server import ServerError
from bench.signing import signing as compare_signing
from bench.soak import Soak
from bench.soak import soak as run_long
from bench.stores import Cluster, Folder
from bench.stuck import stuck as compare_stuck

_VARIANTS = click.Choice(["sotw", "delta", "split", "both", "all"])


VARIANTS_HELP = "Dialect of xDS; split: Delta with virtual hosts by themselves; both: the first two."


@click.group(context_settings={"show_default": True, "max_content_width": 110})
def main() -> None:
    """Measures mesh-pilot, or another xDS control plane: how long changes take to reach every client, and what they
    cost. Everything runs on this machine, on free ports, in a folder that is gone afterwards.

    Seconds depend on the machine and on what else it does; CPU seconds less, counts of calls, bytes and responses not.
    """


def _outputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of everything that measures."""
    for option in (
        click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all measurements there."),
        click.option("--svg", "svg_file", type=click.Path(path_type=Path), help="Write a plot there."),
        click.option("--quiet", is_flag=True, help="No progress, only the table."),
    ):
        command = option(command)
    return command


def _variants(choice: str) -> tuple[str, ...]:
    return {"both": ("sotw", "delta"), "all": ("sotw", "delta", "split")}.get(choice, (choice,))


def _chosen(told: str, known: Collection[str], option: str) -> tuple[str, ...]:
    chosen = tuple(filter(None, told.split(",")))
    if unknown := [name for name in chosen if name not in known]:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}", param_hint=option)
    return chosen


class _Output:
    """Progress while it runs, then the results everywhere they are wanted."""

    def __init__(self, json_file: Path | None, svg_file: Path | None, quiet: bool) -> None:
        self._json, self._svg, self._quiet = json_file, svg_file, quiet
        self._began = time.monotonic()
        self._started = report.surroundings()

    def say(self, text: str) -> None:
        if not self._quiet:
            click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}", err=True)

    def finish(self, measured: Sequence[Measurement]) -> None:
        report.show(measured, Console(width=None if Console().is_terminal else 180))
        if self._json:
            report.write_json(self._json, measured, self._started)
        if self._svg:
            self._svg.write_text(plot.svg(measured), encoding="utf-8")
        wrong = [m for m in measured if m.missing or m.problems]
        if wrong:
            raise click.ClickException(f"{len(wrong)} measurements where something was wrong: see the last column")


def _run(output: _Output, work: Callable[[], list[Measurement]]) -> None:
    try:
        measured = work()
    except (ServerError, SwarmError) as error:
        raise click.ClickException(str(error)) from None
    output.finish(measured)


@main.command()
@click.option("--services", default=100, help="Services of the mesh.")
@click.option("--endpoints", default=5, help="Endpoints of each.")
@click.option("--virtual-services", type=int, help="VirtualServices; by default one a service.")
@click.option("--namespaces", default=1, help="Namespaces that services and clients are spread over.")
@click.option("--scoped", is_flag=True, help="A Sidecar in each namespace narrows its clients to it.")
@click.option("--clients", default=100, help="Clients, a connection each.")
@click.option("--variant", type=_VARIANTS, default="both", help=VARIANTS_HELP)
@click.option("--events", default="route,endpoint,service,warm,reconnect", help=f"Of {', '.join(EVENTS)}; or: all.")
@click.option("--repeat", default=3, help="How often each event; the table has the middle one.")
@click.option("--patience", default=60.0, help="Seconds that an event may take.")
@click.option("--budget", default=600.0, help="Seconds for all events of one variant on one server.")
@click.option("--settle", default=0.3, help="Seconds without a response after which an event is over.")
@click.option("--processes", default=1, help="Processes of the swarm.")
@click.option(
    "--load-program", is_flag=True, help="The clients are those of bench/load, which come back by themselves; needs Go."
)
@click.option("--with", "flags", multiple=True, help="Run the same with these flags of discovery, too; repeatable.")
@click.option("--workers", default=1, help="Workers of our server.")
@click.option("--compare", "revision", default="", help="Run the same on this git revision, too.")
@click.option("--peer", "peer_address", default="", help="host:port of another xDS server to drive the same way.")
@click.option("--peer-pid", type=int, help="Its process, for CPU and memory.")
@click.option("--peer-config-dir", type=click.Path(path_type=Path), help="The folder that it reads.")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="An API server that all of them read, with a token."
)
@click.option("--peer-http", default="", help="Where it answers /debug/statistics, if it is a mesh-pilot.")
@_outputs
def run(
    services: int,
    endpoints: int,
    virtual_services: int | None,
    namespaces: int,
    scoped: bool,
    clients: int,
    variant: str,
    events: str,
    repeat: int,
    patience: float,
    budget: float,
    settle: float,
    processes: int,
    load_program: bool,
    flags: tuple[str, ...],
    workers: int,
    revision: str,
    peer_address: str,
    peer_pid: int | None,
    peer_config_dir: Path | None,
    kubeconfig: Path | None,
    peer_http: str,
    **outputs: Any,
) -> None:
    """Events on one mesh with a swarm of clients."""
    chosen = tuple(EVENTS) if events == "all" else _chosen(events, EVENTS, "--events")
    peer, cluster = None, Cluster(kubeconfig) if kubeconfig else None
    if peer_address:
        store = cluster or (Folder(peer_config_dir) if peer_config_dir else None)
        if peer_pid is None or store is None:
            raise click.UsageError("--peer needs --peer-pid, and --peer-config-dir or --kubeconfig")
        peer = cases.Peer(address=peer_address, pid=peer_pid, store=store, http=peer_http)
    case = cases.Case(
        mesh=Mesh(
            services=services,
            endpoints=endpoints,
            virtual_services=services if virtual_services is None else virtual_services,
            namespaces=namespaces,
            scoped=scoped,
        ),
        clients=clients,
        variants=_variants(variant),
        events=chosen,
        repeat=repeat,
        patience=patience,
        budget=budget,
        settle=settle,
        processes=processes,
        flags=flags,
        workers=workers,
    )
    output = _Output(**outputs)

    def measure() -> list[Measurement]:
        with built_load_program() if load_program else nullcontext(SWARM) as program:
            playing = attrs.evolve(case, program=program)
            return cases.run_case(playing, output.say, revision=revision, peer=peer, cluster=cluster)

    _run(output, measure)


@main.command()
@click.option("--sizes", default="100,1000,10000", help="Numbers of services.")
@click.option("--clients", default=10, help="Clients on each mesh.")
@click.option("--variant", type=_VARIANTS, default="delta", help=VARIANTS_HELP)
@click.option("--repeat", default=3, help="How often each event.")
@_outputs
def scale(sizes: str, clients: int, variant: str, repeat: int, **outputs: Any) -> None:
    """What one change costs as the mesh grows: CPU and translator calls."""
    output = _Output(**outputs)
    counts = [int(size) for size in sizes.split(",")]
    _run(output, lambda: cases.scale(counts, clients, _variants(variant), output.say, repeat=repeat))


@main.command()
@click.option("--services", default=10_000, help="Services of the mesh.")
@click.option("--endpoints", default=10, help="Endpoints of each.")
@click.option("--virtual-services", default=0, help="VirtualServices.")
@click.option("--repeat", default=1, help="How often.")
@click.option("--compare", "revision", default="", help="By turns on this git revision, too.")
@_outputs
def cold(services: int, endpoints: int, virtual_services: int, repeat: int, revision: str, **outputs: Any) -> None:
    """From the start of the process on files to the first full answer, and the memory that takes."""
    output = _Output(**outputs)
    mesh = Mesh(services=services, endpoints=endpoints, virtual_services=virtual_services)
    _run(output, lambda: cases.cold(mesh, output.say, repeat=repeat, revision=revision))


@main.command()
@click.option("--services", default=10_000, help="Services of the mesh.")
@click.option("--endpoints", default=10, help="Endpoints of each.")
@click.option("--repeat", default=1, help="How often.")
@click.option("--compare", "revision", default="", help="By turns on this git revision, too.")
@_outputs
def restart(services: int, endpoints: int, repeat: int, revision: str, **outputs: Any) -> None:
    """From the start on the state of an earlier run to the first full answer, against a start on files."""
    output = _Output(**outputs)
    mesh = Mesh(services=services, endpoints=endpoints, virtual_services=0)
    _run(output, lambda: cases.restart(mesh, output.say, repeat=repeat, revision=revision))


@main.command()
@click.option("--services", default=100, help="Services of the mesh.")
@click.option("--clients", type=click.IntRange(min=FEW + 1), default=1000, help="Clients, a connection each.")
@click.option("--variant", type=_VARIANTS, default="both", help=VARIANTS_HELP)
@_outputs
def idle(services: int, clients: int, variant: str, **outputs: Any) -> None:
    """Many clients: the memory that each costs, and changes for all of them."""
    output = _Output(**outputs)
    mesh = Mesh(services=services, virtual_services=services)
    _run(output, lambda: cases.idle(mesh, clients, _variants(variant), output.say))


@main.command()
@click.option("--services", default=1000, help="Services of the mesh.")
@click.option("--clients", default=100, help="Clients, a connection each; one of them gets stuck.")
@click.option("--edits", default=30, help="Edits of each kind with the stuck client, and as many without.")
@click.option("--variant", type=_VARIANTS, default="both", help=VARIANTS_HELP)
@_outputs
def stuck(services: int, clients: int, edits: int, variant: str, **outputs: Any) -> None:
    """What a client that reads nothing costs the others, edit by edit with and without it."""
    output = _Output(**outputs)
    mesh = Mesh(services=services, virtual_services=services)
    _run(output, lambda: compare_stuck(mesh, clients, _variants(variant), edits, output.say))


@main.command()
@click.option("--services", default=100, help="Services of the mesh.")
@click.option("--clients", default=100, help="Clients, a connection each.")
@click.option("--edits", default=30, help="Edits of each kind next to CSRs, and as many without.")
@click.option("--rate", default=500.0, help="CSRs a second.")
@click.option("--key", "kind", type=click.Choice(["ec", "rsa"]), default="ec", help="Kind of the callers' keys.")
@click.option("--variant", type=_VARIANTS, default="delta", help=VARIANTS_HELP)
@_outputs
def signing(services: int, clients: int, edits: int, rate: float, kind: str, variant: str, **outputs: Any) -> None:
    """What signing certificates costs pushes, edit by edit with and without CSRs."""
    output = _Output(**outputs)
    mesh = Mesh(services=services, virtual_services=services)
    _run(output, lambda: compare_signing(mesh, clients, _variants(variant), edits, rate, kind, output.say))


@main.command()
@click.option("--services", default=100, help="Services of the mesh.")
@click.option("--clients", default=1000, help="Clients that come back at once, a connection each.")
@click.option("--variant", type=_VARIANTS, default="both", help=VARIANTS_HELP)
@click.option("--repeat", default=3, help="How often they come.")
@click.option("--rate", default=0.0, help="New streams a second that the server admits; 0: its default.")
@click.option("--keep/--forget", default=True, help="Clients present the versions that they have, or none.")
@click.option("--compare", "revision", default="", help="Herds come to this git revision, too, by turns.")
@_outputs
def herd(
    services: int,
    clients: int,
    variant: str,
    repeat: int,
    rate: float,
    keep: bool,
    revision: str,
    **outputs: Any,
) -> None:
    """Clients of a control plane that is gone come to another at once: how long, how much memory."""
    output = _Output(**outputs)
    mesh = Mesh(services=services, virtual_services=services)
    come = partial(come_back, mesh, clients, _variants(variant), repeat, output.say)
    _run(output, lambda: come(keep=keep, rate=rate, revision=revision))


@main.command()
@click.option("--services", default=100, help="Services of the mesh.")
@click.option("--clients", default=1000, help="Envoys that come at once.")
@click.option("--repeat", default=3, help="How often, each time to a server that was just started.")
@click.option("--compare", "revision", default="", help="They come to this git revision, too, by turns.")
@_outputs
def fresh(services: int, clients: int, repeat: int, revision: str, **outputs: Any) -> None:
    """Envoys that are new come at once: TLS, a certificate, TLS with that, the first answer, and the CPU of each."""
    output = _Output(**outputs)
    mesh = Mesh(services=services, virtual_services=services)
    _run(output, lambda: come_anew(mesh, clients, repeat, output.say, revision=revision))


@main.command()
@click.option("--services", default=1000, help="Services of the mesh.")
@click.option("--endpoints", default=5, help="Endpoints of each.")
@click.option("--clients", default=10_000, help="Clients, a connection each.")
@click.option("--variant", type=_VARIANTS, default="delta", help=VARIANTS_HELP)
@click.option("--workers", default=1, help="Workers of the control plane.")
@click.option("--repeat", default=3, help="How often each change.")
@click.option("--parts", default=",".join(PARTS), help="Which; rolling: a restart of two planes, next to a real Envoy.")
@_outputs
def clients(
    services: int,
    endpoints: int,
    clients: int,
    variant: str,
    workers: int,
    repeat: int,
    parts: str,
    **outputs: Any,
) -> None:
    """Thousands of clients, which a program in Go plays: changes, memory, pages, a rolling restart."""
    output = _Output(**outputs)
    mesh = Mesh(services=services, endpoints=endpoints, virtual_services=services)
    chosen = _chosen(parts, PARTS, "--parts")
    _run(output, lambda: many_clients(mesh, clients, _variants(variant), chosen, workers, repeat, output.say))


@main.command()
@click.option("--clients", default=2000, help="Clients that make the difference.")
def model(clients: int) -> None:
    """The constants of docs/large-meshes.md: what a client, a change, a service and an endpoint cost."""
    try:
        constants = measure_constants(clients, _Output(None, None, False).say)
    except (ServerError, SwarmError) as error:
        raise click.ClickException(str(error)) from None
    click.echo("\n".join([*rows(constants), "", *examples(constants)]))


@main.command()
@click.option("--services", default="5000", help="Services in Consul; several numbers with commas: one after another.")
@click.option("--instances", default=4, help="Instances of each.")
@click.option("--seen", default="100", help="Services that the Sidecar of the client shows; several with commas.")
@click.option("--repeat", default=20, help="How many changes of each kind.")
@click.option("--idle", "idle_seconds", default=60.0, help="Seconds without any change.")
@click.option("--settle", "settle_seconds", default=5.0, help="Seconds after the last change that count as its cost.")
@click.option("--variant", type=click.Choice(["sotw", "delta", "split"]), default="delta", help=VARIANTS_HELP)
@click.option("--max-queries", default=60, help="As --consul-max-queries.")
@click.option("--consul", type=click.Path(path_type=Path), help="The binary of a real Consul; else one that is played.")
@_outputs
def consul(services: str, seen: str, **values: Any) -> None:
    """A Consul of many services: first ready, and changes of those that a client sees and of those that none sees."""
    output = _Output(**{name: values.pop(name) for name in ("json_file", "svg_file", "quiet")})
    sizes = [
        Size(services=int(count), seen=min(int(shown), int(count)), **values)
        for count in services.split(",")
        for shown in seen.split(",")
    ]
    _run(output, lambda: [found for size in sizes for found in consul_size(size, output.say)])


@main.command()
@click.option("--minutes", type=click.IntRange(min=1), default=60, help="How long.")
@click.option("--services", default=10_000, help="Services in Consul.")
@click.option("--instances", default=10, help="Instances of each.")
@click.option("--edits-per-second", default=300, help="Services that change in a second, an instance each.")
@click.option("--replicas", default=3, help="Control planes.")
@click.option("--clients", default=90, help="Clients, spread over the control planes.")
@click.option("--variant", type=click.Choice(["sotw", "delta", "split"]), default="delta", help=VARIANTS_HELP)
@click.option("--consul", type=click.Path(path_type=Path), help="Consul's binary; else $CONSUL, or the one on PATH.")
@click.option("--log", type=click.Path(path_type=Path), help="Write the table there as well.")
def soak(log: Path | None, **values: Any) -> None:
    """Replicas on a real Consul whose services change all the time: is a change lost, does anything grow?"""
    try:
        wrong = run_long(Soak(**values), log, _Output(None, None, False).say)
    except (ServerError, SwarmError) as error:
        raise click.ClickException(str(error)) from None
    if wrong:
        raise click.ClickException("; ".join(wrong))


main.add_command(generate.command)

if __name__ == "__main__":
    main(prog_name="python -m bench")
