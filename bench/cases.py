"""Whole cases: a mesh served by one server or several, and every event of a list on it, as often as wanted."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import attrs

from bench.crew import SWARM, Crew
from bench.events import EVENTS, NotHere, Stage, connect
from bench.mesh import Mesh
from bench.report import Measurement, spread
from bench.server import (
    OwnServer,
    Server,
    ServerError,
    checkout,
    compiled_modules,
    filled,
    own_server,
    proportional_memory,
)
from bench.stores import Cluster, Store

Say = Callable[[str], None]

FEW = 10
"""Clients that come before those whose memory is measured."""


@attrs.frozen(kw_only=True)
class Peer:
    """Another control plane, which runs already and reads a store."""

    address: str
    pid: int
    store: Store
    http: str = ""
    """Where it answers mesh-pilot's ``/debug/statistics``; empty: it does not."""
    settle_seconds: float = 3.0
    """How long it may take to have read a mesh."""


@attrs.frozen(kw_only=True)
class Case:
    mesh: Mesh
    clients: int
    variants: tuple[str, ...] = ("sotw", "delta")
    events: tuple[str, ...] = ("route", "endpoint")
    repeat: int = 1
    patience: float = 60.0
    """Seconds that any event may take."""
    budget: float = 600.0
    """Seconds for the case on one server in one variant; events that are not begun by then are left out."""
    settle: float = 0.3
    """Seconds without a response after which an event is over."""
    processes: int = 1
    """Of the swarm."""
    flags: tuple[str, ...] = ()
    """Sets of flags of our own server: after the run without any there is one with each."""
    workers: int = 1
    """Of our own server."""
    program: tuple[str, ...] = SWARM
    """What plays the clients, see ``Crew``."""


def run_case(
    case: Case, say: Say, *, revision: str = "", peer: Peer | None = None, cluster: Cluster | None = None
) -> list[Measurement]:
    """On our own server, then on that of a git revision, then on the peer; with a cluster all of them read that."""
    files = case.mesh.files()
    if cluster is None:
        return _run_on_each(case, say, files, revision, peer, None)
    cluster.prepare((*case.mesh.all_namespaces, "istio-system"))
    with filled(cluster, files):
        say("the mesh is in the API server")
        return _run_on_each(case, say, files, revision, peer, cluster)


def _run_on_each(
    case: Case, say: Say, files: Mapping[str, str], revision: str, peer: Peer | None, cluster: Cluster | None
) -> list[Measurement]:
    measured: list[Measurement] = []
    for variant in case.variants:
        options = ("--workers", str(case.workers)) if case.workers > 1 else ()
        with own_server("mesh-pilot", files, options=options, cluster=cluster) as server:
            measured += _on_own(case, server, variant, say)
        for flags in case.flags:
            with own_server(
                f"mesh-pilot {flags}", files, options=(*options, *shlex.split(flags)), cluster=cluster
            ) as server:
                measured += _on_own(case, server, variant, say)
        if revision:
            with checkout(revision) as tree, own_server(revision, files, source=tree, cluster=cluster) as server:
                measured += _on_own(case, server, variant, say)
        if peer is not None:
            other = Server("peer", peer.address, peer.pid, peer.store, peer.http)
            with filled(peer.store, files) if peer.store is not cluster else nullcontext():
                time.sleep(peer.settle_seconds)
                measured += _on_server(case, other, variant, say)
    return measured


def _on_own(case: Case, server: OwnServer, variant: str, say: Say) -> list[Measurement]:
    seconds = server.start()
    say(f"{server.name} ready after {seconds:.2f} s: {server.cpu_seconds():.2f} s CPU, {server.memory()[0]:.0f} MB")
    return _on_server(case, server, variant, say)


@contextmanager
def on_stage(server: OwnServer, mesh: Mesh, variant: str, clients: int, say: Say) -> Iterator[Stage]:
    """A swarm that has everything, on a server that runs."""
    with Crew(server.address) as crew:
        stage = Stage(server, crew, mesh, variant, clients, 60, lambda text: say(f"{variant}: {text}"))
        connect(stage)
        yield stage


def _on_server(case: Case, server: Server, variant: str, say: Say) -> list[Measurement]:
    began = time.monotonic()
    with Crew(server.address, processes=case.processes, program=case.program) as crew:
        told = f"{server.name}, {variant}, {case.mesh.label}, {case.clients:,} clients: "
        stage = Stage(
            server, crew, case.mesh, variant, case.clients, case.patience, lambda text: say(told + text), case.settle
        )
        connect(stage)
        for name in case.events:
            for stage.repeat in range(case.repeat):
                if time.monotonic() - began > case.budget:
                    say(f"{told}out of time; {name} is left out")
                    break
                try:
                    EVENTS[name](stage)
                except NotHere as reason:
                    say(f"{told}{name} is left out: {reason}")
                    break
        say(f"{told}{_memory_of(server)}")
    return stage.measured


def _memory_of(server: Server) -> str:
    """The memory of each process: the first worker, the fork server, the other workers."""
    return "MB: " + ", ".join(f"{proportional_memory(pid):.0f}" for pid in server.processes())


# -- special cases


def scale(sizes: Sequence[int], clients: int, variants: Sequence[str], say: Say, *, repeat: int) -> list[Measurement]:
    """What a change costs on meshes of growing size."""
    found: list[Measurement] = []
    for services in sizes:
        mesh = Mesh(services=services, virtual_services=services)
        events = ("route", "endpoint", "service")
        case = Case(mesh=mesh, clients=clients, variants=tuple(variants), events=events, repeat=repeat)
        found += run_case(case, say)
    return found


def cold(mesh: Mesh, say: Say, *, repeat: int = 1, revision: str = "") -> list[Measurement]:
    """From the start of the process on files to the first full answer of one client; by turns on a git revision."""
    measured = []
    with _by_turns(revision) as turns:
        for number in range(repeat):
            for name, source in turns:
                with own_server(name, mesh.files(), source=source) as server:
                    measured.append(_first_answer(server, mesh, "files to first full answer", number, say))
    return measured


def restart(mesh: Mesh, say: Say, *, repeat: int = 1, revision: str = "") -> list[Measurement]:
    """From the start to the first full answer: on files, then killed and with its state, then also without files; by
    turns on a git revision."""
    measured = []
    with _by_turns(revision) as turns:
        for number in range(repeat):
            for name, source in turns:
                with own_server(name, mesh.files(), source=source) as server:
                    measured += _restarted(server, mesh, number, say)
    return measured


def _restarted(server: OwnServer, mesh: Mesh, number: int, say: Say) -> list[Measurement]:
    cold = _first_answer(server, mesh, "files to first full answer", number, say)
    _wait_kept(server)
    server.kill()
    again = _first_answer(server, mesh, "state to first full answer, files there", number, say)
    server.kill()
    server.folder.rename(server.folder.with_name("away"))
    away = _first_answer(server, mesh, "state to first full answer, files away", number, say)
    for one in (again, away):
        say(f"{server.name}, {one.event}: {one.last / cold.last:.2f} of the time, {one.cpu / cold.cpu:.2f} of the CPU")
    return [cold, again, away]


@contextmanager
def _by_turns(revision: str) -> Iterator[Sequence[tuple[str, Path | None]]]:
    """What is measured, by name: this checkout, then that of a revision if there is one. Both are compiled."""
    with compiled_modules(), checkout(revision) if revision else nullcontext() as tree:
        turns = [("mesh-pilot", None), *([(revision, tree)] if tree is not None else [])]
        few = Mesh(services=1, virtual_services=0)
        for name, source in turns:
            with own_server(name, few.files(), source=source) as server:
                _first_answer(server, few, "", 0, lambda text: None)
        yield turns


def _wait_kept(server: OwnServer) -> None:
    """Wait until the pictures of all sources are in the state."""
    for _ in range(600):
        if 'mesh_pilot_state_picture_age_seconds{source="files"}' in server.text("/metrics"):
            return
        time.sleep(0.1)
    raise ServerError("the picture of the files is not kept")


def _first_answer(server: OwnServer, mesh: Mesh, event: str, number: int, say: Say) -> Measurement:
    """From the start of the process to the first full answer of one client."""
    began = time.monotonic()
    ready = server.start(300)
    cpu_ready, memory_ready = server.cpu_seconds(), server.memory()[0]
    with Crew(server.address) as crew:
        crew.open(1, "sotw", mesh.all_namespaces)
        times = crew.complete(300)
        cpu = server.cpu_seconds()
        received = crew.count()
        problems = crew.check()["problems"]
    now, most = server.memory()
    note = f"ready after {ready:.2f} s ({cpu_ready:.2f} s CPU, {memory_ready:.0f} MB); at most {most:.0f} MB"
    calls = server.work().calls
    found = Measurement(
        server=server.name,
        mesh=mesh.label,
        variant="sotw",
        clients=1,
        event=event,
        repeat=number,
        missing=times.missing,
        bytes=received.bytes,
        responses=received.responses,
        by_type=received.by_type,
        resources=received.resources,
        cpu=cpu,
        memory=now,
        calls=sum(calls.values()),
        calls_by_function=calls,
        problems=problems,
        note=note,
        **spread([at - began for at in times.at]),
    )
    say(f"{server.name}, {mesh.label}, {event}: last {found.last:.2f} s, CPU {cpu:.2f} s; {note}")
    return found


def idle(mesh: Mesh, clients: int, variants: Sequence[str], say: Say) -> list[Measurement]:
    """What clients cost that are connected and complete, and then an endpoint change for all of them."""
    measured = []
    for variant in variants:
        with own_server("mesh-pilot", mesh.files()) as server:
            server.start()
            with Crew(server.address) as crew:
                crew.open(FEW, variant, mesh.all_namespaces)
                crew.complete(60)
                crew.quiet(0.5, 10)
                few = server.memory()[0]
                stage = Stage(server, crew, mesh, variant, clients, 120, say)
                with stage.measuring("connect, the others warm") as span:
                    span.began = time.monotonic()
                    crew.open(clients - FEW, variant, mesh.all_namespaces)
                    span.times = crew.complete(120)
                each = (server.memory()[0] - few) * 1024 / (clients - FEW)
                stage.measured[-1] = attrs.evolve(stage.measured[-1], note=f"{each:.0f} KB a client")
                say(f"{clients:,} clients, {variant}: {each:.0f} KB each")
                for stage.repeat in range(3):
                    EVENTS["endpoint"](stage)
                    EVENTS["route"](stage)
                measured += stage.measured
    return measured
