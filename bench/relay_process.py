"""The relay of an agent as a separate process, for ``bench.relay``; it imports only what the agent imports.

python -m bench.relay_process CONTROL_PLANE FOLDER
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.relay.answers import Answers
from mesh_pilot.agent.relay.planes import Planes
from mesh_pilot.agent.relay.relay import Relay
from mesh_pilot.agent.settings import PlaneSettings
from mesh_pilot.model.service import NOWHERE
from mesh_pilot.net.rpc import open_listeners, serve


async def serve_relay(plane: str, folder: Path) -> None:
    """Serve on a Unix socket in a folder, which also takes the answers."""
    planes = Planes(PlaneSettings((Pilot.parse(plane),), plaintext=True), NOWHERE, lambda: None, dict, hello=())
    relay = Relay(planes, Answers(folder / "answers.db", "bench"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(planes.run)
        nursery.start_soon(relay.run)
        nursery.start_soon(partial(serve, [relay], await open_listeners(f"unix://{folder / 'xds.sock'}")))


if __name__ == "__main__":
    trio.run(serve_relay, sys.argv[1], Path(sys.argv[2]))
