"""A certificate that somebody else keeps in files: used as it is, and read again when it changes."""

from __future__ import annotations

from pathlib import Path

import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.identity.material import IdentityMaterial, MaterialError, read_material
from mesh_pilot.agent.identity.source import CertificateSource
from mesh_pilot.net.rpc import CertificateFiles

log = structlog.get_logger(scope="agent.identity")

LOOK_SECONDS = 1.0


class CertificateWatcher(CertificateSource):
    """Keeps ``material`` what the files say; while they cannot be used, what they said before."""

    def __init__(
        self, certificate: Path, key: Path, roots: Path, material: Observable[IdentityMaterial | None]
    ) -> None:
        super().__init__()
        self._files = CertificateFiles(certificate=certificate, key=key, trusted=roots)
        self._material = material
        self._seen: object = None

    def __repr__(self) -> str:
        return f"<CertificateWatcher {self._files.certificate}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the files now and then, forever; started once they were read."""
        await self._look()
        task_status.started()
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        stamp = self._files.stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            found = await trio.to_thread.run_sync(self._read)
        except OSError as error:
            self._fail(f"{error.filename}: {error.strerror}")
        except MaterialError as error:
            self._fail(f"{self._files.certificate}: {error}")
        else:
            self.last_failure = ""
            self._material.set(found)
            log.info("certificate found", identity=found.identity, ends=f"{found.ends:%F %T}")

    def _read(self) -> IdentityMaterial:
        assert self._files.certificate and self._files.key and self._files.trusted
        texts = [file.read_bytes() for file in (self._files.key, self._files.certificate, self._files.trusted)]
        return read_material(*texts)

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self.last_failure = reason
        stays = "the previous certificate is kept" if self._material.value else "there is no certificate"
        log.warning("certificate files not usable", reason=reason, advice=f"{stays}; fix the files, they are watched")
