"""Where the workload's certificate comes from: a base for all ways, and itself the way of a proxy without one."""

from __future__ import annotations

import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.identity.renewal import Proof


class CertificateSource:
    """Keeps ``material``, which it is made with, in force. Mutable state: how it is doing."""

    def __init__(self, *, settled: bool = True) -> None:
        self.settled = Observable(settled)
        """True once there is a certificate in force, or the first attempt to have one is over, or none is wanted."""
        self.renewals = 0
        self.failures = 0
        self.last_failure = ""
        """Empty once it has succeeded again."""
        self.is_kept = True
        """False while the certificate in force is not on disk though it should be."""

    @property
    def proof(self) -> Proof | None:
        """The proof that calls should show now, where there is a certificate."""
        return Proof.CERTIFICATE

    def hasten(self) -> None:
        """Renew soon, where that is up to us: there are other roots."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Obtain and renew, forever; started once what is there already was read."""
        task_status.started()
        await trio.sleep_forever()
