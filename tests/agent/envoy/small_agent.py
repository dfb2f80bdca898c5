"""An agent with Envoy and one port only, which executes itself on SIGHUP: ``python -m`` this, RUN ENVOY PORT."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import trio

from mesh_pilot.agent.base.handover import Handover, own_command
from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.settings import AgentFolders, EnvoySettings, Ports

GENERATION = "generation"
"""File with a line for each process image that serves."""


async def _answer(stream: trio.SocketStream) -> None:
    async with stream:
        if await stream.receive_some(4096):
            await stream.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nagent")


async def run(folder: Path, envoy: Path, port: int, handover: Handover) -> bool:
    settings = EnvoySettings(binary=envoy, drain_seconds=1, parent_shutdown_seconds=2, concurrency=2)
    runner = EnvoyRunner(settings, Ports(), AgentFolders(folder, folder), handover=handover)
    with trio.open_signal_receiver(signal.SIGHUP) as hangups:
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as connections:
                listeners = await handover.listeners("status", f"127.0.0.1:{port}")
                handover.close_rest()
                accepting = trio.CancelScope()

                async def accept() -> None:
                    with accepting:
                        await trio.serve_listeners(_answer, listeners, handler_nursery=connections)

                nursery.start_soon(accept)
                nursery.start_soon(runner.run, Observable(json.loads((folder / "bootstrap.json").read_text())))
                await runner.ready.wait_for(bool)
                with (folder / GENERATION).open("a") as file:
                    file.write(f"{runner.statistics().pid}\n")
                await anext(hangups)
                accepting.cancel()
            # Here all requests that were accepted are answered.
            runner.leave()
            nursery.cancel_scope.cancel()
    return True


def main() -> None:
    folder, envoy, port = sys.argv[1:]
    handover = Handover.received()
    while trio.run(run, Path(folder), Path(envoy), int(port), handover):
        command = own_command()
        if (Path(folder) / "broken").exists():
            command[0] = "/no/such/python"
        print(handover.execute(command), flush=True)


if __name__ == "__main__":
    main()
