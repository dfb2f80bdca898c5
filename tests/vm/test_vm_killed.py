"""The five VMs of docs/vm.md under load, while each part of them is killed in turn, or replaced by another version.

Calls may fail only where the instance that was killed had them, or where the only way leads through it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from tests.support.binaries import require_binary
from tests.support.envoy import eventually
from tests.vm.lab import Vm, vms
from tests.vm.test_vm_page import ADDRESSES, PAGE, walk

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(900)]

THREADS = 4
READY = "curl -s -m 2 -o /dev/null -w '%{http_code}' http://127.0.0.1:15021/healthz/ready"
ENOUGH = 150
"""Calls after each blow, and after all is well again, by which it is seen what it broke."""


def supervised(page: str) -> str:
    """The page, with the control plane started again whenever it ends, as a unit with ``Restart=always`` does it."""
    return re.sub(
        r"# (.*mesh-pilot discovery .*) > (\S+) 2>&1 &$",
        r"# (while [ ! -e stopped ]; do \1; sleep 0.5; done) >> \2 2>&1 &",
        page,
        flags=re.MULTILINE,
    )


def pids(vm: Vm, program: str) -> list[int]:
    """The processes of a program there: ``discovery``, ``proxy`` or ``envoy``."""
    patterns = {"discovery": r"mesh_pilot\.cli discovery", "proxy": r"^\S*python\S* .*mesh_pilot\.cli proxy"}
    pattern = patterns.get(program, r"^\S*/envoy .*-c ")
    return [pid for pid, line in vm.processes().items() if re.search(pattern, line)]


async def is_ready(vm: Vm) -> bool:
    return await vm.type(READY) == "200"


@attrs.define
class Load:
    """Calls from a VM, and what went wrong with them."""

    vm: Vm
    result: Path

    def failures(self, since: float = 0) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.result.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if "wrong" in line and line["until"] >= since]

    @property
    def calls(self) -> int:
        """So far."""
        lines = [json.loads(line) for line in self.result.read_text(encoding="utf-8").splitlines()]
        return max((line["calls"] for line in lines if "calls" in line), default=0)

    async def goes_on(self) -> None:
        until = self.calls + ENOUGH
        await eventually(lambda: self.calls >= until, what=f"calls from {self.vm.name}")

    async def recovers(self) -> None:
        """Go on until no call has failed for a while."""
        failed = -1
        while failed != len(self.failures()):
            failed = len(self.failures())
            await self.goes_on()


@asynccontextmanager
async def load(vm: Vm, url: str) -> AsyncIterator[Load]:
    result = vm.home / "load.json"
    program = Path(__file__).with_name("load.py")
    result.touch(mode=0o666)
    result.chmod(0o666)
    await vm.type(f"setpriv --reuid nobody --clear-groups python3 {program} {url} {result} {THREADS} & loader=$!")
    found = Load(vm, result)
    try:
        yield found
    finally:
        await vm.type("kill $loader; wait $loader")


@attrs.define
class Mesh:
    """The five VMs, with two loads: from outside by the gateway, and from the machine of ``web``, both to reviews."""

    lab: dict[str, Vm]
    outside: Load
    inside: Load
    story: list[str] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)

    async def blow(self, what: str, do: Callable[[], object], *, spares: tuple[Load, ...], lost: int, then: Vm) -> None:
        """Do it, wait until all is well again, and see that those that it spares lost no more than ``lost`` calls."""
        began = time.time()
        do()
        for each in spares:
            await each.goes_on()
        await eventually(lambda: is_ready(then), what=f"{what}: {then.name} is ready again")
        for each in (self.outside, self.inside):
            await each.recovers()
        for spared in spares:
            failed = spared.failures(began)
            name = "outside" if spared is self.outside else "inside"
            self.story.append(f"{what}: {name} lost {len(failed)}")
            if len(failed) > lost:
                self.wrong += [
                    f"{what}: {name} lost, after {each['at'] - began:.2f} s: {each['wrong']}" for each in failed
                ]


@asynccontextmanager
async def loaded_mesh(
    prepare: Callable[[dict[str, Vm]], None] = lambda lab: None,
) -> AsyncIterator[Mesh]:
    """The VMs after the page was typed, ``prepare`` before that, with both loads."""
    async with vms(ADDRESSES) as lab:
        prepare(lab)
        await walk(lab, supervised(PAGE))
        plane = lab["plane"]
        for key in ("VirtualService/default/reviews", "AuthorizationPolicy/default/reviews"):
            await plane.type(f"consul kv delete mesh-pilot/config/{key}")
        both = "for i in $(seq 40); do curl -s http://10.77.0.5:8080/reviews; done | sort | uniq -c | wc -l"

        async def balanced() -> bool:
            return await plane.type(both) == "2"

        await eventually(balanced, what="both versions are called")
        async with (
            load(plane, "http://10.77.0.5:8080/reviews") as outside,
            load(lab["web"], "http://reviews.service.consul:9080/") as inside,
        ):
            for each in (outside, inside):
                await each.goes_on()
            assert not outside.failures() and not inside.failures(), "before anything was done"
            yield Mesh(lab, outside, inside)


def kill(vm: Vm, program: str, number: int = signal.SIGKILL) -> Callable[[], None]:
    def do() -> None:
        found = pids(vm, program)
        assert found, f"no {program} on {vm.name}: {vm.processes()}"
        for pid in found:
            os.kill(pid, number)

    return do


async def test_whatever_is_killed_no_call_fails_but_its_own() -> None:
    async with loaded_mesh() as mesh:
        lab, both = mesh.lab, (mesh.outside, mesh.inside)
        plane = lab["plane"]
        await mesh.blow("the control plane is killed", kill(plane, "discovery"), spares=both, lost=0, then=lab["web"])
        ways = {"v1": both, "v2": both, "web": (mesh.outside,), "edge": (mesh.inside,)}
        for name, spares in ways.items():
            vm = lab[name]
            lost = THREADS if name in ("v1", "v2") else 0
            for program in ("envoy", "proxy"):
                what = f"{program} on {name} is killed"
                await mesh.blow(what, kill(vm, program), spares=spares, lost=lost, then=vm)
        await plane.type("touch stopped")
        await mesh.blow("no control plane is left", kill(plane, "discovery"), spares=both, lost=0, then=lab["web"])
        assert not pids(plane, "discovery")
        for name, spares in ways.items():
            vm = lab[name]
            lost = THREADS if name in ("v1", "v2") else 0
            for program in ("envoy", "proxy"):
                what = f"{program} on {name} is killed, without a control plane"
                await mesh.blow(what, kill(vm, program), spares=spares, lost=lost, then=vm)
        assert not mesh.wrong, "\n".join([*mesh.wrong, "", *mesh.story])


async def test_another_version_of_the_agent_takes_over_without_a_failed_call() -> None:
    async with loaded_mesh() as mesh:
        both = (mesh.outside, mesh.inside)
        for name, vm in mesh.lab.items():
            if name != "plane":
                hangup = kill(vm, "proxy", signal.SIGHUP)
                before = pids(vm, "proxy"), pids(vm, "envoy")
                await mesh.blow(f"SIGHUP on {name}", hangup, spares=both, lost=0, then=vm)
                await eventually(lambda vm=vm: says(vm, "envoy is taken over"), what=name)  # type: ignore[misc]
                assert (pids(vm, "proxy"), pids(vm, "envoy")) == before, "it is the same process, with the same Envoy"
        assert not mesh.wrong, "\n".join([*mesh.wrong, "", *mesh.story])


OTHER_BUILD = """\
#!/bin/sh
case "$1" in
--version) {envoy} --version | sed 's,/RELEASE/,/{build}/,' ;;
*) exec {envoy} "$@" ;;
esac
"""


async def test_another_build_of_envoy_takes_over_without_a_failed_call() -> None:
    """As after an upgrade of its package: the file is another, and the unit is reloaded."""
    envoy = str(require_binary("envoy"))

    def install(vm: Vm, build: str) -> None:
        new = vm.home / "envoy.new"
        new.write_text(OTHER_BUILD.format(envoy=envoy, build=build), encoding="utf-8")
        new.chmod(0o755)
        new.rename(vm.home / "envoy")

    def prepare(lab: dict[str, Vm]) -> None:
        for vm in lab.values():
            install(vm, "FIRST")
        for name, settings in (("web", "web"), ("v1", "reviews-v1"), ("v2", "reviews-v2"), ("edge", "edge")):
            with (lab["plane"].home / f"{settings}.yaml").open("a", encoding="utf-8") as file:
                file.write(f"envoy: {lab[name].home / 'envoy'}\n")

    async with loaded_mesh(prepare) as mesh:
        both = (mesh.outside, mesh.inside)
        for name, vm in mesh.lab.items():
            if name == "plane":
                continue
            install(vm, "SECOND")
            hangup = kill(vm, "proxy", signal.SIGHUP)
            await mesh.blow(f"Envoy on {name} is another", hangup, spares=both, lost=0, then=vm)
            await eventually(lambda vm=vm: says(vm, "envoy was hot restarted"), what=name)  # type: ignore[misc]
        for vm in mesh.lab.values():
            ended = eventually(lambda vm=vm: len(pids(vm, "envoy")) < 2, what="the old one ends", seconds=180)  # type: ignore[misc]
            await ended
        await mesh.blow("the old ones have ended", lambda: None, spares=both, lost=0, then=mesh.lab["web"])
        assert not mesh.wrong, "\n".join([*mesh.wrong, "", *mesh.story])


def says(vm: Vm, words: str) -> bool:
    return words in (vm.home / "proxy.log").read_text(encoding="utf-8")
