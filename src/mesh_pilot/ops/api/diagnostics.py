"""The process itself: how it was started, and profiles of it."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable
from importlib.metadata import distributions

import trio
from starlette.requests import Request

from mesh_pilot import __version__
from mesh_pilot.model.json import Json
from mesh_pilot.model.redaction import redacted
from mesh_pilot.ops.api.paging import number_of
from mesh_pilot.ops.api.route import NUMBER, ApiError, ApiRoute, Found, Parameter
from mesh_pilot.ops.api.visitors import Role
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.process.profiling import CpuProfile, MemoryProfile, cpu_profile, memory_profile, resident_bytes

SECONDS = Parameter("seconds", "The length of the profile, 10 by default, at most 60.", schema=NUMBER)

PREFIXES = ("MESH_PILOT_", "PILOT_", "ISTIO_", "CONSUL_", "VAULT_")
"""Environment variables that are told, without those that hold secrets."""


def routes(state: PlaneState) -> list[ApiRoute]:
    turn = trio.CapacityLimiter(1)

    async def process(_: Request) -> Found:
        return process_facts

    async def profiled(request: Request, profile: Callable[[float, threading.Event], object]) -> Found:
        seconds = number_of(request, "seconds", 10, least=1, most=60)
        stop = threading.Event()
        try:
            turn.acquire_nowait()
        except trio.WouldBlock:
            raise ApiError(409, "a profile is being made; ask again when it is done") from None
        try:
            return await trio.to_thread.run_sync(profile, seconds, stop, abandon_on_cancel=True)
        finally:
            stop.set()
            turn.release()

    async def cpu(request: Request) -> Found:
        return await profiled(request, cpu_profile)

    async def memory(request: Request) -> Found:
        return await profiled(request, memory_profile)

    return [
        ApiRoute(
            "/process",
            "The process: its arguments and variables without secrets, versions of libraries, memory, threads.",
            process,
            role=Role.OPERATE,
        ),
        ApiRoute(
            "/profile/cpu",
            "Sample what the process does for some seconds: stacks, and how often each was seen.",
            cpu,
            method="POST",
            role=Role.OPERATE,
            parameters=(SECONDS,),
            answers=CpuProfile,
        ),
        ApiRoute(
            "/profile/memory",
            "Trace for some seconds where memory is taken and not given back; by line of code.",
            memory,
            method="POST",
            role=Role.OPERATE,
            parameters=(SECONDS,),
            answers=MemoryProfile,
        ),
    ]


def process_facts() -> Json:
    """The answer of ``/process``."""
    found: Json = redacted(
        {
            "version": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "pid": os.getpid(),
            "arguments": arguments(sys.argv),
            "environment": {name: each for name, each in sorted(os.environ.items()) if name.startswith(PREFIXES)},
            "resident_bytes": resident_bytes(),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "cpus": os.cpu_count(),
            "libraries": {each.name: each.version for each in sorted(distributions(), key=lambda each: each.name)},
        }
    )
    return found


def arguments(given: list[str]) -> list[Json]:
    """A command line in which the values of flags for secrets are blank, also where they follow the flag."""
    found: list[Json] = []
    flag = ""
    for word in given:
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            found.append(f"{name}={_value(name, value)}")
        else:
            found.append(_value(flag, word))
        flag = word if word.startswith("--") and not equals else ""
    return found


def _value(flag: str, value: str) -> str:
    blank: dict[str, str] = redacted({flag.lstrip("-").replace("-", "_"): value})
    return next(iter(blank.values()))
