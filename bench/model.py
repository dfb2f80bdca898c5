"""What a control plane costs, as constants: of a client, of a change at a client, of a service, of an endpoint.

``docs/large-meshes.md`` has the formula that they go into. Each is a difference between two sizes, so that what does
not grow is in none of them; the clients are those of the load program.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import attrs

from bench.cases import Say
from bench.crew import Crew
from bench.events import Stage, endpoint_flap, route_edit
from bench.load_program import load_program
from bench.mesh import Mesh
from bench.report import Measurement, middle
from bench.server import Server, own_server

FEW = 100
"""Clients before the many come; also how many connect to the larger mesh."""
SMALL, LARGE = Mesh(services=100, virtual_services=100), Mesh(services=1100, virtual_services=1100)
WIDE = attrs.evolve(LARGE, endpoints=25)
PATIENCE = 600.0
REPEAT = 5
IDLE_SECONDS = 30.0
CONSTANTS = {
    "plane": ("MB", "memory of a plane without services and clients"),
    "service": ("KB", "memory of a service with its VirtualService"),
    "endpoint": ("KB", "memory of an endpoint"),
    "client": ("KB", "memory of a client"),
    "change": ("µs", "CPU of an endpoint change at a client"),
    "change_bytes": ("KB", "sent for it to a client"),
    "route": ("µs", "CPU of a route edit at a client"),
    "route_bytes": ("KB", "sent for it to a client"),
    "connect": ("ms", f"CPU of a new client, {SMALL.services} services included"),
    "return": ("ms", "CPU of a client that comes back with what it has"),
    "idle": ("µs", "CPU of a connected client in a second without changes"),
    "connect_service": ("µs", "CPU more of a new client for each service that it sees"),
}
"""Units and meanings, in the order of the documentation's table."""


Constants = Mapping[str, float]
"""Values by name, in the units of ``CONSTANTS``."""


def model(many: int, say: Say) -> Constants:
    """All constants; ``many`` clients more make the difference."""
    with load_program() as program:
        base = {mesh.label: _memory_of(mesh, program, say) for mesh in (SMALL, LARGE, WIDE)}
        small, large, wide = base.values()
        endpoint = (wide - large) / (LARGE.services * (WIDE.endpoints - LARGE.endpoints))
        service = (large - small) / (LARGE.services - SMALL.services) - LARGE.endpoints * endpoint
        start = small - SMALL.services * (service + SMALL.endpoints * endpoint)
        few, found = _of_clients(SMALL, many, program, say)
        larger = _of_clients(LARGE, 0, program, say)[0]
        growth = (larger - few) / (LARGE.services - SMALL.services)
        return {
            **found,
            "plane": start,
            "service": service * 1e3,
            "endpoint": endpoint * 1e3,
            "connect_service": growth * 1e6,
        }


def _memory_of(mesh: Mesh, program: Sequence[str], say: Say) -> float:
    """Megabytes of a plane that has answered one client in full."""
    with own_server("mesh-pilot", mesh.files()) as server, ExitStack() as stack:
        server.start(300)
        crew = stack.enter_context(Crew(server.address, program=program))
        crew.open(1, "split", mesh.all_namespaces)
        crew.complete(PATIENCE)
        memory = server.memory()[0]
    say(f"{mesh.label}: {memory:.0f} MB")
    return memory


def _of_clients(mesh: Mesh, many: int, program: Sequence[str], say: Say) -> tuple[float, Constants]:
    """CPU seconds of one of few connections, when the plane has served one; and with many more, what they cost."""
    with own_server("mesh-pilot", mesh.files()) as server, ExitStack() as stack:
        server.start(300)
        crew = stack.enter_context(Crew(server.address, program=program))
        stage = Stage(server, crew, mesh, "split", FEW, PATIENCE, say)
        _open(stage, 1)
        few = _open(stage, FEW) / FEW
        say(f"{mesh.label}: {few * 1e3:.2f} ms of CPU for each connection")
        if not many:
            return few, {}
        before, memory = _changes(stage), server.memory()[0]
        connect = _open(stage, many) / many
        grown = (server.memory()[0] - memory) / many
        idle = _idle(server) / (many + FEW)
        after = _changes(stage)
        endpoint, route = ((now.cpu - then.cpu) / many for now, then in zip(after, before, strict=True))
        crew.disconnect()
        _settle(server)
        cpu = server.cpu_seconds()
        crew.reconnect(keep=True)
        crew.quiet(1, PATIENCE)
        back = (_settle(server) - cpu) / (many + FEW + 1)
    return few, {
        "client": grown * 1e3,
        "change": endpoint * 1e6,
        "change_bytes": after[0].bytes / after[0].clients / 1e3,
        "route": route * 1e6,
        "route_bytes": after[1].bytes / after[1].clients / 1e3,
        "connect": connect * 1e3,
        "return": back * 1e3,
        "idle": idle * 1e6,
    }


def _open(stage: Stage, count: int) -> float:
    """CPU seconds of the plane for so many clients more."""
    cpu = _settle(stage.server)
    stage.crew.open(count, stage.variant, stage.mesh.all_namespaces)
    stage.crew.complete(PATIENCE)
    stage.clients = stage.crew.clients
    return _settle(stage.server) - cpu


def _changes(stage: Stage) -> tuple[Measurement, Measurement]:
    """An endpoint change and a route edit, with the median of the CPU."""
    stage.measured.clear()
    for stage.repeat in range(REPEAT):
        endpoint_flap(stage)
        route_edit(stage)
    found = {m.event: m for m in middle(stage.measured)}
    return found["endpoint change"], found["route edit"]


def _idle(server: Server) -> float:
    """CPU seconds of a second in which nothing changes."""
    cpu, began = server.cpu_seconds(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (server.cpu_seconds() - cpu) / (time.monotonic() - began)


def _settle(server: Server) -> float:
    """The CPU seconds of a plane once it has nothing to do."""
    cpu = server.cpu_seconds()
    while True:
        time.sleep(1)
        before, cpu = cpu, server.cpu_seconds()
        if cpu - before < 0.05:
            return cpu


PLANS = ((1_000, 2, 1.0), (10_000, 4, 1.0), (10_000, 2, 0.1), (100_000, 10, 0.1))
"""Proxies, replicas, and endpoint changes a second that a proxy sees."""
SEEN = Mesh(services=1000, virtual_services=1000)
ROUTES_A_SECOND, AGE_SECONDS = 1 / 60, 1800.0


def rows(constants: Constants) -> list[str]:
    """The documentation's table of constants."""
    head = ["| constant | measured | what it is |", "|---|---|---|"]
    return head + [f"| `{name}` | {constants[name]:,.3g} {unit} | {of} |" for name, (unit, of) in CONSTANTS.items()]


def examples(constants: Constants) -> list[str]:
    """The documentation's table of plans, by its formula and from the constants as they are printed."""
    c = {name: float(f"{value:.3g}") for name, value in constants.items()}
    rows = ["| proxies | replicas | changes a second | memory of each | cores of each | sent by each | to the last |"]
    rows.append("|---" * 7 + "|")
    for proxies, replicas, changes in PLANS:
        p, routes = proxies / replicas, ROUTES_A_SECOND * changes
        memory = c["plane"] + (SEEN.services * (c["service"] + SEEN.endpoints * c["endpoint"]) + p * c["client"]) / 1000
        coming = (c["connect"] * 1e3 + c["connect_service"] * (SEEN.services - SMALL.services)) / AGE_SECONDS
        cores = p * (changes * c["change"] + routes * c["route"] + c["idle"] + coming) / 1e6
        network = p * (changes * c["change_bytes"] + routes * c["route_bytes"]) / 1000
        last = p * c["change"] / 1e6
        told = (f"{memory:,.0f} MB", f"{cores:.2f}", f"{network:.1f} MB/s", f"{last:.2f} s")
        rows.append(f"| {proxies:,} | {replicas} | {changes:g} | {' | '.join(told)} |")
    return rows
