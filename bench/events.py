"""What may happen to a mesh, and how each is measured. An event is a function of a ``Stage``, in the table at the end.

An event changes files, says what clients are to hold afterwards, and waits until they do; nothing waits for longer
than the stage's patience.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import attrs

from bench.crew import Crew, Times, Wanted
from bench.mesh import EXTRA, HOT_ROUTE, HOT_SERVICE, Mesh, edit_marker, route_marker
from bench.report import Measurement, spread
from bench.server import OwnServer, Server

IDLE = 0.25
"""Share of a core below which a server is not working on anything."""

BURST = 1000
"""Changes in the burst, or as many as there are services."""

PROGRESS_SECONDS = 10
"""Between two lines about clients that connect."""

_edits = itertools.count(1)


class NotHere(Exception):
    """An event that is not available with this server."""


@attrs.define
class Stage:
    """A server with a mesh, a swarm on it, and the measurements so far."""

    server: Server
    crew: Crew
    mesh: Mesh
    variant: str
    clients: int
    patience: float
    say: Callable[[str], None]
    settle: float = 0.3
    """Seconds without a response after which an event is over."""
    measured: list[Measurement] = attrs.Factory(list)
    repeat: int = 0

    @contextmanager
    def measuring(self, event: str, *, checked: bool = True, alone: bool = True) -> Iterator[Span]:
        """Measure what the block does: it says when it began and when clients had it.

        ``alone``: the server does nothing else meanwhile, so that the end is when it is idle.
        """
        crew, server = self.crew, self.server
        crew.quiet(self.settle, 5)
        work = server.work()
        time.sleep(0.05)
        before = crew.count()
        cpu, waited = server.cpu_seconds(), server.waited_seconds()
        span = Span()
        yield span
        lacked = max(after - waited.get(thread, after) for thread, after in server.waited_seconds().items())
        last = self._end() if alone else self.crew.quiet(self.settle, self.patience)
        cpu = server.cpu_seconds() - cpu
        received, after = crew.count(), server.work()
        seconds = [at - span.began for at in span.times.at] or [at - span.began for at in last if at > span.began]
        calls = {f: n - work.calls.get(f, 0) for f, n in after.calls.items() if n != work.calls.get(f, 0)}
        published = after.publish_count - work.publish_count
        problems = [f"duplicate {name} in a response" for name in received.duplicates]
        if received.connected != crew.clients:
            problems.append(f"{crew.clients - received.connected} clients without a stream")
        if checked:
            problems += self.crew.check()["problems"]
        times = spread(seconds)
        self.measured.append(
            Measurement(
                server=server.name,
                mesh=self.mesh.label,
                variant=self.variant,
                clients=self.clients,
                event=event,
                repeat=self.repeat,
                waited=min(lacked, times["last"]),
                missing=span.times.missing,
                publish=(after.publish_seconds - work.publish_seconds) / published if published > 0 else 0.0,
                bytes=received.bytes,
                responses=received.responses,
                by_type=received.by_type,
                resources=received.resources,
                needless=received.needless,
                removed=received.removed,
                cpu=cpu,
                swarm_cpu=received.cpu_seconds - before.cpu_seconds,
                memory=server.memory()[0],
                calls=sum(calls.values()),
                calls_by_function=calls,
                problems=problems,
                note=span.note,
                **times,
            )
        )
        m = self.measured[-1]
        took = f"last {m.last:.3f} s" + (f" ({m.waited:.3f} s without a core)" if m.waited else "")
        spent = f"CPU {m.cpu:.3f} s, of the clients {m.swarm_cpu:.3f} s"
        self.say(f"{m.event}: {took}, {spent}, {m.bytes / 1e6:.2f} MB, {m.calls} calls")

    def _end(self) -> list[float]:
        """Wait until no client is sent anything and the server does next to nothing; when each was last sent something.

        A server may be busy for a while before its first response.
        """
        deadline = time.monotonic() + self.patience
        while True:
            cpu, began = self.server.cpu_seconds(), time.monotonic()
            last = self.crew.quiet(self.settle, self.patience)
            now = time.monotonic()
            if self.server.cpu_seconds() - cpu < IDLE * (now - began) or now > deadline:
                return last

    def change(self, event: str, do: Callable[[], float], wanted: Sequence[Wanted]) -> None:
        """One change that ``do`` makes, until all clients that see it hold what is wanted."""
        with self.measuring(event) as span:
            self.crew.expect(wanted, self.mesh.seen_by)
            span.began = do()
            span.times = self.crew.collect(self.patience)

    def restore(self, edit: int) -> None:
        """Give the first service its own endpoints again, unmeasured."""
        self.crew.expect([("EDS", edit_marker(edit), 0)], self.mesh.seen_by)
        self.write(HOT_SERVICE, self.mesh.service(0))
        self.crew.collect(self.patience)

    def write(self, name: str, text: str) -> float:
        return self.server.store.write(name, text)

    def has_routes(self) -> bool:
        return self.mesh.virtual_services > 0


@attrs.define
class Span:
    """Filled in by what is measured."""

    began: float = 0.0
    times: Times = attrs.field(factory=lambda: Times((), 0))
    note: str = ""


def route_edit(stage: Stage, event: str = "route edit") -> None:
    """A VirtualService gets another timeout and header."""
    if not stage.has_routes():
        raise NotHere("the mesh has no VirtualService")
    edit = next(_edits)
    text = stage.mesh.virtual_service(0, edit)
    kind = "VHDS" if stage.variant == "split" else "RDS"
    stage.change(event, lambda: stage.write(HOT_ROUTE, text), [(kind, route_marker(edit), 1)])


def endpoint_flap(stage: Stage) -> None:
    """An endpoint of a service goes and another comes; then the first is back."""
    edit = next(_edits)
    new, old = stage.mesh.service(0, edit=edit, edited=1), stage.mesh.service(0)
    stage.change("endpoint change", lambda: stage.write(HOT_SERVICE, new), [("EDS", edit_marker(edit), 1)])
    stage.change("endpoint back", lambda: stage.write(HOT_SERVICE, old), [("EDS", edit_marker(edit), 0)])


def rolling_deploy(stage: Stage) -> None:
    """All endpoints of a service are replaced one by one, 50 ms apart."""
    edit, mesh = next(_edits), stage.mesh
    steps = [mesh.service(0, edit=edit, edited=count) for count in range(1, mesh.endpoints + 1)]

    def deploy() -> float:
        for text in steps[:-1]:
            stage.write(HOT_SERVICE, text)
            time.sleep(0.05)
        return stage.write(HOT_SERVICE, steps[-1])

    stage.change("rolling deploy", deploy, [("EDS", edit_marker(edit), mesh.endpoints)])
    stage.restore(edit)


def service_comes_and_goes(stage: Stage) -> None:
    """A service more: cluster and endpoints; then it is gone."""
    edit = next(_edits)
    name, text = f"|extra{edit}.ns0.", stage.mesh.extra(edit)
    stage.change("service added", lambda: stage.write(EXTRA, text), [("CDS", name, 1), ("EDS", edit_marker(edit), 1)])
    stage.change("service removed", lambda: stage.server.store.remove(EXTRA), [("CDS", name, 0)])


def burst(stage: Stage) -> None:
    """An endpoint of each of 1,000 services changes, in as many files as those are in, at once."""
    edit, mesh = next(_edits), stage.mesh
    groups = mesh.groups()[: BURST // 100]
    texts = {f"bench-services-{number:04}.yaml": mesh.service_file(group, edit) for number, group in enumerate(groups)}
    seen = sum(mesh.namespace(n) == mesh.seen_by or not mesh.seen_by for group in groups for n in group)
    if not seen:
        raise NotHere("no services but the first")

    def change() -> float:
        return min([stage.write(name, text) for name, text in texts.items()])

    stage.change(f"burst of {sum(map(len, groups))}", change, [("EDS", edit_marker(edit), seen)])
    stage.crew.expect([("EDS", edit_marker(edit), 0)], mesh.seen_by)  # before the first can have it
    for number, group in enumerate(groups):
        stage.write(f"bench-services-{number:04}.yaml", mesh.service_file(group))
    stage.crew.collect(stage.patience)


def warm_connect(stage: Stage) -> None:
    """All clients come again to a server that has served their like."""
    stage.crew.disconnect()
    with stage.measuring("connect, warm") as span:
        span.began = time.monotonic()
        stage.crew.reconnect(keep=False)
        span.times = stage.crew.complete(stage.patience)


def reconnect(stage: Stage) -> None:
    """All clients come back with the versions that they have."""
    stage.crew.disconnect()
    with stage.measuring("reconnect with versions") as span:
        span.began = time.monotonic()
        stage.crew.reconnect(keep=True)


def restart(stage: Stage) -> None:
    """The server is killed and started; all clients come back at once when it is ready, with the versions they have."""
    server = stage.server
    if not isinstance(server, OwnServer):
        raise NotHere("only a server that the bench started can be restarted")
    server.kill()
    stage.crew.quiet(0.05, 2)
    stage.crew.disconnect()
    ready = server.start()
    with stage.measuring("reconnect after restart") as span:
        span.note = f"ready after {ready:.2f} s"
        span.began = time.monotonic()
        stage.crew.reconnect(keep=True)


def stuck_client(stage: Stage) -> None:
    """A client stops reading; what does a change cost the others?"""
    stage.crew.set_role("stuck")
    edit = next(_edits)
    change = partial(stage.write, HOT_SERVICE, stage.mesh.service(0, edit=edit, edited=1))
    try:
        if stage.has_routes():
            route_edit(stage, "route edit, one stuck")
        stage.change("endpoint change, one stuck", change, [("EDS", edit_marker(edit), 1)])
    finally:
        stage.crew.set_role("normal")
    stage.restore(edit)


def refusing_client(stage: Stage) -> None:
    """A client refuses whatever it is sent."""
    stage.crew.set_role("refusing")
    try:
        route_edit(stage, "route edit, one refusing")
    finally:
        stage.crew.set_role("normal")


EVENTS: Mapping[str, Callable[[Stage], None]] = {
    "route": route_edit,
    "endpoint": endpoint_flap,
    "deploy": rolling_deploy,
    "service": service_comes_and_goes,
    "burst": burst,
    "warm": warm_connect,
    "reconnect": reconnect,
    "stuck": stuck_client,
    "refusing": refusing_client,
    "restart": restart,
}
"""By the names that the command line knows, in the order in which they are run."""


def connect(stage: Stage) -> None:
    """The clients of a stage, for the first time; a server that was just started is cold."""
    with stage.measuring("connect, cold") as span:
        span.began = time.monotonic()
        stage.crew.open(stage.clients, stage.variant, stage.mesh.all_namespaces)
        deadline = span.began + stage.patience
        while (times := stage.crew.complete(PROGRESS_SECONDS)).missing and time.monotonic() < deadline:
            had = stage.crew.count(reset=False).responses
            seconds = time.monotonic() - span.began
            stage.say(f"{len(times.at):,} clients are complete after {seconds:.0f} s and {had:,} responses")
        span.times = times
