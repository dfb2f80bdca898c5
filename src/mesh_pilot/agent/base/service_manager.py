"""Tells the service manager how far the agent is: systemd, for a unit of ``Type=notify`` (sd_notify(3)).

So the unit is up when Envoy is ready, a reload ends when the next version has taken over, and a stop that was asked for
by ``/quitquitquit`` is one. Without ``$NOTIFY_SOCKET`` nothing is sent. The variable stays for the next version.
"""

from __future__ import annotations

import os
import socket
import time

import structlog
import trio

log = structlog.get_logger(scope="agent")

VARIABLE = "NOTIFY_SOCKET"
_PATIENCE_SECONDS = 5.0


class ServiceManager:
    """One datagram for each state. A manager that does not take it costs a line in the log, nothing else."""

    def __init__(self, address: str | None = None) -> None:
        """``address``: path of its Unix socket, or ``@`` and an abstract name; by default the variable's value."""
        self._address = os.environ.get(VARIABLE, "") if address is None else address

    def __repr__(self) -> str:
        return f"<ServiceManager at {self._address or 'nowhere'}>"

    async def waiting(self, status: str) -> None:
        """The agent is up, and Envoy not yet; ``status`` is for whoever looks at the unit."""
        await self._tell(f"STATUS={status}")

    async def ready(self) -> None:
        """The start, or the reload, is over."""
        await self._tell("READY=1", "STATUS=Envoy is ready")

    async def reloading(self) -> None:
        """The next version takes over; ``ready`` must follow."""
        await self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")

    async def stopping(self) -> None:
        await self._tell("STOPPING=1", "STATUS=draining")

    async def _tell(self, *assignments: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with trio.fail_after(_PATIENCE_SECONDS), trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                await sock.connect(address)
                await sock.send("\n".join(assignments).encode())
        except (OSError, trio.TooSlowError) as error:
            reason = str(error) or f"it takes nothing for {_PATIENCE_SECONDS:g} s"
            log.warning("service manager not told", state=assignments[0], socket=self._address, reason=reason)
