"""Consul at size: from a start to ready, what changes of services cost that a proxy sees, and of those that none sees.

A plane reads a Consul of many services; a client has a Sidecar that shows it some of them. Each change is in another
service, one right after the other: a check that turns critical and back, an instance that comes, that moves to another
address in place, and that goes. A change that the client sees is over once it has it. What changes that it does not see
cost is what the plane does until nothing is left to find out, and they may send nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from bench.cases import Say
from bench.consul_server import ConsulServer, Operation, address_of, check, consul_server, instance
from bench.crew import Crew, SwarmError
from bench.report import Measurement, spread
from bench.server import OwnServer

CONNECTIONS = 200
"""Of a client at a time: Consul's own limit."""
NEWCOMERS = 9
"""The rank of the first instance that comes; there are fewer ranks before."""
AWAY = 90
"""What the rank of an instance grows by where it moves to."""
PATIENCE = 60.0
START_SECONDS = 600.0


@attrs.frozen(kw_only=True)
class Size:
    """How much of everything."""

    services: int
    instances: int
    seen: int
    """Services that the client's Sidecar shows: the first ones."""
    repeat: int
    """Changes of each kind."""
    idle_seconds: float
    settle_seconds: float
    """How long changes may still cost something afterwards: one that hides behind another is found within three."""
    variant: str = "delta"
    consul: Path | None = None
    """The binary of a real one."""
    max_queries: int = 60

    @property
    def label(self) -> str:
        whose = "Consul" if self.consul else "fake Consul"
        return f"{whose}, {self.services:,} x {self.instances}, {self.seen:,} seen"


def consul_size(size: Size, say: Say) -> list[Measurement]:
    """Everything at one size."""
    with TemporaryDirectory(prefix="mesh-pilot-bench-") as name:
        folder = Path(name)
        with consul_server(folder, size.consul, fake=size.consul is None, connections=CONNECTIONS) as consul:
            consul.put("/v1/catalog/register", {"Node": f"node-{NEWCOMERS}", "Address": "10.0.0.9"})
            consul.fill(size.seen, size.instances, checks=True)
            with _plane(folder, "small", consul, size) as plane:
                plane.start(START_SECONDS)
                time.sleep(size.settle_seconds)
                small = plane.memory()[0]
            consul.fill(size.services, size.instances, checks=True)
            say(f"{size.label}: filled")
            with _plane(folder, "mesh-pilot", consul, size) as plane, Crew(plane.address) as crew:
                run = _Run(size, consul, plane, crew, say)
                run.first_ready()
                run.idle(small)
                run.connect()
                run.changes("seen", range(size.seen))
                if size.services > size.seen:
                    run.changes("unseen", range(size.seen, size.services))
                if not consul.is_fake:
                    run.restart()
                return run.measured


@contextmanager
def _plane(folder: Path, name: str, consul: ConsulServer, size: Size) -> Iterator[OwnServer]:
    """One that is not started yet, with the Sidecar of the client."""
    config = folder / name / "config"
    config.mkdir(parents=True)
    if size.seen < size.services:
        (config / "sidecar.yaml").write_text(sidecar(range(size.seen)), encoding="utf-8")
    options = ("--consul-server-url", consul.url, "--consul-max-queries", str(size.max_queries))
    plane = OwnServer(name, config, options=options)
    try:
        yield plane
    finally:
        plane.stop()


def sidecar(seen: Sequence[int]) -> str:
    hosts = "".join(f"\n    - default/s-{number}.service.consul" for number in seen)
    return f"""
apiVersion: networking.istio.io/v1beta1
kind: Sidecar
metadata: {{name: default, namespace: default}}
spec:
  egress:
  - hosts:{hosts}
"""


Change = tuple[Callable[[], None], str, bool]
"""What makes it; the address that it is about; whether that is there afterwards."""


@attrs.define
class _Run:
    """A plane on its Consul, a client on it. Mutable state: what was measured."""

    size: Size
    consul: ConsulServer
    plane: OwnServer
    crew: Crew
    say: Say
    measured: list[Measurement] = attrs.Factory(list)

    # -- what is measured

    def first_ready(self) -> None:
        seconds = self.plane.start(START_SECONDS)
        asked = self._asked()
        note = f"{asked['queries']:,} queries, {asked['read_bytes'] / 1e6:.1f} MB"
        self._note("first ready", [seconds], cpu=self.plane.cpu_seconds(), note=note)

    def idle(self, small: float) -> None:
        """``small``: the megabytes of a plane whose Consul has only the services that are seen."""
        size = self.size
        time.sleep(size.settle_seconds)
        before, cpu = self._asked(), self.plane.cpu_seconds()
        time.sleep(size.idle_seconds)
        asked, cpu = self._since(before), self.plane.cpu_seconds() - cpu
        note = f"{asked['queries'] * 60 / size.idle_seconds:.0f} queries a minute, CPU of a minute"
        if unseen := size.services - size.seen:
            note += f"; {(self.plane.memory()[0] - small) * 1024 / unseen:.1f} KB a service that is not seen"
        self._note("idle", [], cpu=cpu * 60 / size.idle_seconds, note=note)

    def connect(self) -> None:
        began, cpu = time.monotonic(), self.plane.cpu_seconds()
        self.crew.open(1, self.size.variant, ["default"])
        times = self.crew.complete(PATIENCE)
        if times.missing:
            raise SwarmError(f"the client is not complete after {PATIENCE:g} s")
        self.crew.quiet(0.3, 5)
        received = self.crew.count()
        told = {"bytes": received.bytes, "responses": received.responses}
        self._note("connect", [at - began for at in times.at], cpu=self.plane.cpu_seconds() - cpu, **told)

    def changes(self, which: str, numbers: Sequence[int]) -> None:
        """Each kind of change, in services of their own; those that come, move and go are the same ones."""
        count = max(1, min(self.size.repeat, len(numbers) // 2))
        flapping, others = numbers[:count], [numbers[-1 - at % len(numbers)] for at in range(count)]
        newcomers = [(number, NEWCOMERS) for number in others]
        is_seen = which == "seen"
        for what, changes in {
            "check fails": [(self._set(check(n, 0, "critical")), address_of(n, 0), False) for n in flapping],
            "check passes": [(self._set(check(n, 0, "passing")), address_of(n, 0), True) for n in flapping],
            "instance comes": [(self._set(instance(n, r)), address_of(n, r), True) for n, r in newcomers],
            "instance moves": [self._move(n, r) for n, r in newcomers],
            "instance goes": [(self._drop(n, r), address_of(n, r + AWAY), False) for n, r in newcomers],
        }.items():
            self._measure(f"{what}, {which}", changes, is_seen=is_seen)

    def restart(self) -> None:
        """An instance comes right after Consul was started again, with its data."""
        self.consul.restart()
        change = (self._set(instance(0, NEWCOMERS)), address_of(0, NEWCOMERS), True)
        self._measure("instance comes after a restart", [change], is_seen=True)

    # -- how

    def _set(self, operation: Operation) -> Callable[[], None]:
        return lambda: self.consul.transact([operation])

    def _move(self, number: int, rank: int) -> Change:
        there = address_of(number, rank + AWAY)
        return self._set(instance(number, rank, there)), there, True

    def _drop(self, number: int, rank: int) -> Callable[[], None]:
        gone = {"Node": f"node-{rank}", "ServiceID": f"s-{number}-{rank}"}
        return lambda: self.consul.put("/v1/catalog/deregister", gone)

    def _measure(self, event: str, changes: Sequence[Change], *, is_seen: bool) -> None:
        """The figures of one change: the mean of all of them, but for the times."""
        before, work, cpu = self._asked(), self.plane.work(), self.plane.cpu_seconds()
        self.crew.count()
        spent, missing = [], 0
        for do, address, is_there in changes:
            if is_seen:
                self.crew.expect([("EDS", address, int(is_there))])
            began = time.monotonic()
            do()
            if is_seen:
                times = self.crew.collect(PATIENCE)
                spent += [at - began for at in times.at]
                missing += times.missing
        self.crew.quiet(self.size.settle_seconds, self.size.settle_seconds)
        cpu, asked = self.plane.cpu_seconds() - cpu, self._since(before)
        calls, received, count = self._calls_since(work.calls), self.crew.count(), len(changes)
        problems = [] if is_seen or not received.responses else [f"{received.responses} responses for what is not seen"]
        # What is called once belongs to no change: a proxy's diagnostics are looked at now and then.
        problems += [f"called {name}" for name, times in calls.items() if not is_seen and times >= max(count, 2)]
        if received.connected != self.crew.clients:
            problems.append("the client has no stream")
        self._note(
            event,
            spent,
            cpu=cpu / count,
            missing=missing,
            bytes=received.bytes // count,
            responses=received.responses // count,
            calls=sum(calls.values()) // count,
            calls_by_function=calls,
            problems=problems,
            note=f"{asked['queries'] / count:.1f} queries, {asked['read_bytes'] / count / 1e3:.0f} kB; one of {count}",
        )

    def _calls_since(self, before: Mapping[str, int]) -> Mapping[str, int]:
        return {
            name: n - before.get(name, 0) for name, n in self.plane.work().calls.items() if n != before.get(name, 0)
        }

    def _asked(self) -> Mapping[str, int]:
        """What the plane has asked Consul for so far."""
        told = self.plane.get("/debug/statistics")["sources"]
        return next(each["source"] for each in told if each["name"] == "consul")

    def _since(self, before: Mapping[str, int]) -> Mapping[str, int]:
        now = self._asked()
        return {name: now[name] - before[name] for name in ("queries", "read_bytes")}

    def _note(self, event: str, times: Sequence[float], **told: Any) -> None:
        memory = self.plane.memory()[0]
        found = Measurement(
            server="mesh-pilot",
            mesh=self.size.label,
            variant=self.size.variant,
            clients=1,
            event=event,
            memory=memory,
            **spread(times),
            **told,
        )
        self.measured.append(found)
        self.say(f"{event}: p50 {found.p50:.3f} s, last {found.last:.3f} s, CPU {found.cpu:.4f} s; {found.note}")
