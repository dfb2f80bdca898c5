"""Has certificates signed by the control planes, and keeps the last one on disk.

``RenewalPlan`` decides when and by which proof; here are the calls, the disk and the log. A certificate is used before
it is on disk, even where the disk never takes it: the token that it was signed for may have been for one use, and a
workload without a certificate serves nothing. Writing is done in a thread that a hanging disk may hold forever, so it
is abandoned after a while and tried again, under a lock, and only what is still in force is written. A new key is made
for each request: a key that somebody has read is of no use after the next renewal. No timer runs to the end of a
certificate's life, because the wall clock may be set and the machine may sleep; both clocks are looked at now and then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from operator import is_not

import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.identity.credentials import TokenError, named_in, token_files, token_metadata
from mesh_pilot.agent.identity.folder import CertificateFolder
from mesh_pilot.agent.identity.material import (
    IdentityMaterial,
    MaterialError,
    new_key,
    shown_difference,
)
from mesh_pilot.agent.identity.renewal import Moment, Proof, RenewalPlan, Validity
from mesh_pilot.agent.identity.signing import NotSigned, SigningFailure, clock_difference, signed_material
from mesh_pilot.agent.identity.source import CertificateSource
from mesh_pilot.agent.settings import CredentialSettings, PlaneSettings
from mesh_pilot.net.rpc import TlsError, TlsSource
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="agent.identity")

LOOK_SECONDS = 30.0
"""The wall clock may be set, so it is looked at now and then."""
TOKEN_LOOK_SECONDS = 1.0
"""While a new token would help, its file is looked at."""
SAVE_SECONDS = 10.0
"""Between attempts to write what a full disk did not take."""
SAME_LINE_SECONDS = 600.0


class CertificateRotator(CertificateSource):
    """Keeps ``material`` in force by calls of control planes.

    Mutable state: where renewing stands, a certificate that waits until it begins, the last one on its way to disk, and
    counters.
    """

    def __init__(
        self,
        credentials: CredentialSettings,
        planes: PlaneSettings,
        folder: CertificateFolder,
        material: Observable[IdentityMaterial | None],
        tls: Callable[[Proof], TlsSource | None],
        *,
        wall: Callable[[], float] = time.time,
        renewal: RenewalPlan | None = None,
    ) -> None:
        """``tls`` gives that for a call that shows this proof."""
        super().__init__(settled=False)
        self._credentials = credentials
        self._planes = planes
        self._folder = folder
        self._material = material
        self._tls = tls
        self._wall = wall
        self._renewal = renewal or RenewalPlan(has_token=bool(token_files(credentials)))
        self._next: IdentityMaterial | None = None
        """A certificate that has not begun, while the one before it is in force."""
        self._unsaved: Observable[IdentityMaterial | None] = Observable(None)
        self._lines = LogLimiter(seconds=SAME_LINE_SECONDS)
        self._changed = trio.Event()
        self._writing = threading.Lock()
        """Held by the thread that writes: one that a hanging disk kept must not write between another's files."""
        self._tokens: object = None
        """The stamps of the token files as they were last tried."""

    def __repr__(self) -> str:
        return f"<CertificateRotator {self._renewal}>"

    @property
    def proof(self) -> Proof | None:
        return self._renewal.proof(self._now())

    def hasten(self) -> None:
        if self._material.value is not None:
            self._renewal.hasten(self._now())
            self._changed.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Obtain and renew, forever; started once what is on disk was read."""
        await self._load()
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep)
            while True:
                await self._until_due()
                await self._attempt()
                self.settled.set(True)

    async def _load(self) -> None:
        found = await trio.to_thread.run_sync(self._folder.load)
        if found.problem:
            log.warning(
                "kept certificate not usable" if found.material is None else "folder not writable", reason=found.problem
            )
        if found.material is None:
            return
        self._take(found.material, found.obtained)
        ended = found.material.clock_difference(self._clock())
        log.info(
            "certificate found",
            identity=found.material.identity,
            ends=f"{found.material.ends:%F %T}",
            **({} if ended is None else {"note": "it ended, or the clock is wrong"}),
        )
        self.settled.set(ended is None)

    def _take(self, material: IdentityMaterial, obtained: float) -> None:
        self._renewal.hold(_validity(material), obtained, self._now())
        self._next = None
        self._material.set(material)

    async def _until_due(self) -> None:
        while (seconds := self._renewal.seconds_to_next(self._now())) > 0:
            wants_token = self._renewal.failures > 0 and self._renewal.has_token
            with trio.move_on_after(min(seconds, TOKEN_LOOK_SECONDS if wants_token else LOOK_SECONDS)):
                await self._changed.wait()
            self._changed = trio.Event()
            if self._next is not None and self._renewal.takes(_validity(self._next), self._now()):
                self._use(self._next)
                self._unsaved.set(self._material.value)
            if wants_token and self._stamps() != self._tokens:
                self._renewal.retry_now(self._now())

    async def _attempt(self) -> None:
        """Ask the control planes in turn for a certificate of a fresh key."""
        proof = self._renewal.proof(self._now())
        if proof is None:
            self._fail(SigningFailure.PROOF, "there is neither a certificate nor a token", None)
            self.settled.set(True)
            await trio.sleep_forever()
        metadata: Mapping[str, str] = {}
        self._tokens = self._stamps()
        if proof is Proof.TOKEN:
            try:
                metadata = await trio.to_thread.run_sync(token_metadata, self._credentials)
            except TokenError as error:
                self._fail(SigningFailure.PROOF, str(error), proof)
                return
        held = self._material.value
        name = held.identity if held is not None and proof is not Proof.TOKEN else named_in(metadata)
        key = await trio.to_thread.run_sync(new_key, self._credentials.key_type)
        failures: list[NotSigned] = []
        for pilot in self._planes.addresses:
            try:
                material = await signed_material(
                    pilot.address,
                    key,
                    name,
                    tls=self._tls(proof),
                    server_name=self._planes.server_name,
                    metadata=metadata,
                    seconds=int(self._credentials.lifetime or 0),
                )
                self._accept(material)
                # Also at the end of the agent: the token may have been for one use.
                with trio.move_on_after(SAVE_SECONDS, shield=True) as saving:
                    await self._save(material)
                if saving.cancelled_caught:  # a disk that hangs
                    self.is_kept = False
                    self._unsaved.set(material)
                return
            except NotSigned as error:
                failures.append(await self._explained(error, pilot.address))
            except MaterialError as error:
                failures.append(NotSigned(SigningFailure.AWAY, f"{pilot.address}: its answer cannot be used: {error}"))
            except TlsError as error:
                failures.append(NotSigned(SigningFailure.UNTRUSTED, str(error)))
        kinds = {failure.kind for failure in failures}
        kind = next(
            kind for kind in (SigningFailure.PROOF, SigningFailure.UNTRUSTED, SigningFailure.AWAY) if kind in kinds
        )
        self._fail(kind, "; ".join(map(str, failures)), proof)

    async def _explained(self, failure: NotSigned, address: str) -> NotSigned:
        """The same failure, with the clocks compared where they may be the reason."""
        cause = failure.__cause__
        if not isinstance(cause, TlsError) or cause.reason not in ("not_yet_valid", "expired"):
            return failure
        difference = await clock_difference(address, self._planes.server_name, self._clock())
        if difference is None:
            return failure
        other = "old" if cause.reason == "expired" else "not valid yet"
        return NotSigned(failure.kind, f"{failure}: {shown_difference(difference)}, or that certificate is {other}")

    def _accept(self, material: IdentityMaterial) -> None:
        """Use a certificate that was just signed, unless it is not in force and the one before it is."""
        self.last_failure = ""
        is_used = self._renewal.takes(_validity(material), self._now())
        difference = material.clock_difference(self._clock())
        if difference is not None and self._admits("clock"):
            now_used = "the certificate is used as it is" if is_used else "the one before stays until this one begins"
            log.warning(
                "clock differs",
                reason=f"the new certificate is not in force here: {shown_difference(difference)}",
                advice=f"set the clock (timedatectl); {now_used}, and another is asked for each minute",
            )
        if is_used:
            self._use(material)
        else:
            if self._next is None or material.begins < self._next.begins or self._next.ends <= self._clock():
                self._next = material  # each signed later would begin later, and none ever
            self._renewal.put_off(self._now())

    def _use(self, material: IdentityMaterial) -> None:
        self.renewals += 1
        self._take(material, self._wall())
        log.info("certificate signed", identity=material.identity, ends=f"{material.ends:%F %T}")

    def _fail(self, kind: SigningFailure, reason: str, proof: Proof | None) -> None:
        self.failures += 1
        self.last_failure = reason
        self._renewal.failed(self._now(), refused=proof if kind is SigningFailure.PROOF else None)
        if self._admits(reason):
            held = self._material.value
            log.warning(
                "no certificate" if held is None else "certificate not renewed",
                reason=reason,
                proof="none" if proof is None else proof.value,
                advice=self._advice(kind, proof),
                **({"in_force_until": f"{held.ends:%F %T}"} if held is not None else {}),
            )

    def _advice(self, kind: SigningFailure, proof: Proof | None) -> str:
        files = " or ".join(map(str, token_files(self._credentials)))
        match kind:
            case SigningFailure.PROOF if files and proof is Proof.CERTIFICATE:
                return f"the token in {files} is tried"
            case SigningFailure.PROOF if files:
                return f"put a new token into {files}; it is tried as soon as it is there"
            case SigningFailure.PROOF:
                return "give a token file"
            case SigningFailure.UNTRUSTED:
                return "compare the clocks, and the file of roots with: mesh-pilot ca root"
            case SigningFailure.AWAY:
                return "none needed: it is tried again until somebody signs"

    def _admits(self, subject: str) -> bool:
        return self._lines.admit(subject, trio.current_time()) is not None

    async def _keep(self) -> None:
        """Write certificates to disk that could not be written when they came, again until they are there."""
        async for material in self._unsaved.changes():
            while material is not None and material is self._unsaved.value:
                with trio.move_on_after(SAVE_SECONDS):
                    await self._unsaved.wait_for(partial(is_not, material))
                    break
                await self._save(material)

    async def _save(self, material: IdentityMaterial) -> None:
        """Write a certificate to disk, or have it tried again."""
        try:
            await trio.to_thread.run_sync(self._write, material, abandon_on_cancel=True)
        except OSError as error:
            if material is not self._material.value:
                return
            self.is_kept = False
            self._unsaved.set(material)
            if self._admits(f"kept {error.strerror}"):
                log.warning(
                    "certificate not kept",
                    reason=f"{error.filename or self._folder.path}: {error.strerror}",
                    advice="it is in force, but a restart will need a token; it is tried again",
                )
            return
        if material is not self._material.value:
            return  # a slow disk: the next one is on its way there
        if not self.is_kept:
            log.info("certificate kept")
        self.is_kept = True
        self._unsaved.set(None)

    def _write(self, material: IdentityMaterial) -> None:
        with self._writing:
            if material is self._material.value:
                self._folder.create()
                self._folder.save(material)

    def _stamps(self) -> object:
        stamps = []
        for file in token_files(self._credentials):
            try:
                stat = file.stat()
                stamps.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except OSError:
                stamps.append((0, 0, 0))
        return stamps

    def _now(self) -> Moment:
        return Moment(self._wall(), trio.current_time())

    def _clock(self) -> datetime:
        return datetime.fromtimestamp(self._wall(), UTC)


def _validity(material: IdentityMaterial) -> Validity:
    return Validity(material.begins.timestamp(), material.ends.timestamp())
