"""The relay of an agent alone: between a test's clients and control planes, with its answers in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.relay.answers import Answers
from mesh_pilot.agent.relay.choice import Timings
from mesh_pilot.agent.relay.planes import LIMITS, Planes
from mesh_pilot.agent.relay.relay import Relay
from mesh_pilot.agent.relay.subscriptions import hello
from mesh_pilot.agent.settings import PlaneSettings
from mesh_pilot.model.service import NOWHERE, Locality
from mesh_pilot.net.rpc import open_listeners, serve

CLIENT = EnvoyNode("web-1", labels={"app": "web"})

QUICK = Timings(stagger=0.2, first_delay=0.1, longest_delay=0.5, probe=0.3, steady=0.2, proven=5.0)
"""Waits that a test can afford."""


@attrs.define
class Relayed:
    """What runs."""

    planes: Planes
    relay: Relay
    address: str
    """Where Envoys connect to: ``unix:///path``."""


@asynccontextmanager
async def relayed(
    folder: Path,
    *pilots: str,
    node: EnvoyNode = CLIENT,
    locality: Locality = NOWHERE,
    timings: Timings = QUICK,
    answers: str = "answers.db",
) -> AsyncIterator[Relayed]:
    """A relay for the length of the block, without TLS. Answers are those in ``folder``."""
    settings = PlaneSettings(tuple(Pilot.parse(each) for each in pilots), plaintext=True)
    planes = Planes(settings, locality, lambda: None, dict, hello=hello(node), timings=timings, limits=LIMITS)
    relay = Relay(planes, Answers(folder / answers, node.kept_for))
    address = f"unix://{folder / 'xds.sock'}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(planes.run)
        nursery.start_soon(relay.run)
        await nursery.start(partial(serve, [relay], await open_listeners(address)))
        yield Relayed(planes, relay, address)
        nursery.cancel_scope.cancel()
