"""A replica in a separate process, whose task is to write down that it leads.

    python -m tests.election.replica CONSUL-ADDRESS ID FILE TTL-SECONDS

It appends a line ``TERM ID NUMBER`` to a file that all replicas share, right after asking the term, and to an entry of
Consul by a fenced write: the whole entry, so that a write of a leader of the past would undo those of the present one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import trio

from mesh_pilot.consul.election.lock import ConsulElectionSettings
from mesh_pilot.consul.source import Agent
from mesh_pilot.replicas.election.base import LockError, Replica, Term

KEY = "the-log"
EVERY_SECONDS = 0.02


async def main(address: str, name: str, file: Path, ttl_seconds: float) -> None:
    election = ConsulElectionSettings(agent=Agent(address), ttl_seconds=ttl_seconds).election(Replica(name))
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def write_down(term: Term) -> None:
        lines = await read(address)
        number = 0
        while True:
            line = f"{term.number} {name} {number}"
            term.check()
            os.write(descriptor, f"{line}\n".encode())
            try:
                await term.fenced_write(KEY, "\n".join([*lines, line]).encode())
            except LockError:  # whether it was written, nobody knows: the next one has it in any case
                await trio.sleep(EVERY_SECONDS)
            lines.append(line)
            number += 1
            await trio.sleep(EVERY_SECONDS)

    election.while_leading("write down", write_down)
    await election.run()


async def read(address: str) -> list[str]:
    """The lines of the entry; raises httpx.HTTPError, for which the task is restarted."""
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as client:
        reply = await client.get(f"/v1/kv/{KEY}", params={"raw": "", "consistent": ""})
        return reply.raise_for_status().text.splitlines() if reply.status_code != httpx.codes.NOT_FOUND else []


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
