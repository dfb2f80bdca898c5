"""Our own certificate from another SDS server of the machine (SPIRE's agent), which Envoy asks itself."""

from __future__ import annotations

import stat
from pathlib import Path

import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.base.wire import Parts
from mesh_pilot.agent.identity.material import IdentityMaterial, MaterialError, read_material
from mesh_pilot.agent.identity.secret_service import SERVICE
from mesh_pilot.agent.identity.secrets import read_secret
from mesh_pilot.agent.identity.source import CertificateSource
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.base.protowire import WireError, field
from mesh_pilot.model.resource import IDENTITY_SECRET, SECRET, TRUST_SECRET
from mesh_pilot.net.rpc import Cardinality, ClientCall, GRPCError, RpcError, StreamTerminatedError, open_channel
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="agent.identity")

LOOK_SECONDS = 0.5


class ExternalSecrets(CertificateSource):
    """Keeps ``material`` what the server says; what it said last stays while it is away."""

    def __init__(self, socket: Path, node_id: str, material: Observable[IdentityMaterial | None]) -> None:
        super().__init__(settled=False)
        self._socket = socket
        self._node_id = node_id
        self._material = material
        self._lines = LogLimiter(seconds=600.0)
        self._pair: tuple[bytes, bytes] | None = None
        self._roots = b""

    def __repr__(self) -> str:
        return f"<ExternalSecrets of {self._socket}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Subscribe, again whenever the server comes back, forever."""
        task_status.started()
        backoff = Backoff()
        while True:
            await self._until_there()
            try:
                async with (
                    open_channel(f"unix://{self._socket}") as channel,
                    channel.request(f"{SERVICE}/StreamSecrets", Cardinality.STREAM_STREAM, bytes, bytes) as call,
                ):
                    await self._follow(call, backoff)
                reason = "it ended the stream"
            except GRPCError as error:
                reason = f"{error.message} ({error.status.name})"
            except (RpcError, StreamTerminatedError, WireError) as error:
                reason = str(error)
            self._fail(reason)
            await trio.sleep(backoff.next_seconds())

    async def _until_there(self) -> None:
        while not _is_socket(self._socket):
            self._fail("there is no such socket yet")
            await trio.sleep(LOOK_SECONDS)

    async def _follow(self, call: ClientCall[bytes, bytes], backoff: Backoff) -> None:
        """Take secrets until the stream ends."""
        names = field(3, IDENTITY_SECRET.encode()) + field(3, TRUST_SECRET.encode())
        wanted = names + field(4, SECRET.encode())
        await call.send_message(field(2, field(1, self._node_id.encode())) + wanted)
        async for response in call:
            parts, error = Parts(response), ""
            for resource in parts.all(2):
                error = error or self._take(resource)
            error = error or self._show()
            refusal = field(6, b"\x08\x03" + field(2, error.encode())) if error else field(1, parts.last(1))
            await call.send_message(refusal + wanted + field(5, parts.last(5)))
            if error:
                self._fail(error)
            else:
                backoff.reset()

    def _take(self, resource: bytes) -> str:
        """Note one secret of a response; the reason why it cannot be used, if so."""
        try:
            found = read_secret(Parts(resource).last(2))
        except WireError as error:
            return f"a secret {error}"
        if found.is_validation:
            self._roots = found.roots
        elif found.chain:
            self._pair = found.key, found.chain
        return ""

    def _show(self) -> str:
        """Put the secrets in force once they are complete; the reason why they cannot be used, if so."""
        if self._pair is None or not self._roots:
            return ""
        try:
            found = read_material(*self._pair, self._roots)
        except MaterialError as error:
            return str(error)
        if found != self._material.value:
            self._material.set(found)
            log.info("certificate found", identity=found.identity, ends=f"{found.ends:%F %T}")
        self.last_failure = ""
        return ""

    def _fail(self, reason: str) -> None:
        if reason != self.last_failure:
            self.failures += 1
        self.last_failure = reason
        if self._lines.admit(reason, trio.current_time()) is not None:
            stays = "the last certificate is kept" if self._material.value else "there is no certificate yet"
            log.warning("SDS server away", socket=str(self._socket), reason=reason, advice=f"{stays}; start the server")


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
