"""Validity periods, looked at by the clock of now: one may not have begun, as after a clock that was ahead.

    watch = ValidityWatch(parts, now)      # parts: every certificate that this process shows, signs or trusts with
    nursery.start_soon(watch.run)
    watch.faults()                         # {"the certificate of the TLS port": "has not begun: ..."}

A clock may be set at any time, forwards or back, also on a VM that boots before NTP answers. So nothing waits until a
time: everything is compared with the wall clock each `LOOK_SECONDS`, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import attrs
import structlog
import trio
from cryptography import x509

__all__ = ["LOOK_SECONDS", "ValidityPeriod", "ValidityWatch", "leaf_validity", "validity_of"]

log = structlog.get_logger(scope="security")

LOOK_SECONDS = 60.0
"""The interval at which everything with a validity is looked at."""


@attrs.frozen
class ValidityPeriod:
    """From when until when something is valid."""

    begins: datetime
    ends: datetime

    def has_begun(self, now: datetime) -> bool:
        return self.begins <= now

    def covers(self, now: datetime) -> bool:
        return self.begins <= now < self.ends

    def fault(self, now: datetime) -> str:
        """Why it is not valid now; empty if it is."""
        if not self.has_begun(now):
            ahead = _amount((self.begins - now).total_seconds())
            return f"has not begun: it begins at {self.begins:%F %T} UTC, in {ahead}, and it is {now:%F %T}"
        return "" if now < self.ends else f"ended at {self.ends:%F %T} UTC, and it is {now:%F %T}"


def validity_of(certificate: x509.Certificate) -> ValidityPeriod:
    return ValidityPeriod(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def leaf_validity(chain: bytes) -> ValidityPeriod:
    """That of the first certificate in PEM. Raises ValueError."""
    return validity_of(x509.load_pem_x509_certificate(chain))


class ValidityWatch:
    """Logs what is not valid, and what is valid again. Mutable state: what was not valid at the last look."""

    def __init__(
        self,
        parts: Callable[[], Mapping[str, ValidityPeriod]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        """``parts`` gives what to look at, by name for people; ``files``: certificates that are read at each look."""
        self._parts = parts
        self.now = now
        self._files = files or {}
        self._read: Mapping[str, ValidityPeriod] = {}
        self._known: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<ValidityWatch {self.faults()}>"

    def faults(self) -> dict[str, str]:
        """All that is not valid by the clock of now, with the reason."""
        now = self.now()
        every = {**self._parts(), **self._read}
        return {name: fault for name, validity in every.items() if (fault := validity.fault(now))}

    def look(self) -> None:
        """Log what has changed since the last look."""
        found = self.faults()
        for name, fault in found.items():
            if name not in self._known:
                log.error("not in force", what=name, reason=fault, advice="compare this machine's clock (timedatectl)")
        for name in self._known.keys() - found.keys():
            log.info("in force again", what=name)
        self._known = found

    async def run(self) -> None:
        """Look each `LOOK_SECONDS`, forever."""
        while True:
            if self._files:
                self._read = await trio.to_thread.run_sync(self._read_files)
            self.look()
            await trio.sleep(LOOK_SECONDS)

    def _read_files(self) -> Mapping[str, ValidityPeriod]:
        found = {}
        for name, path in self._files.items():
            try:
                found[name] = leaf_validity(path.read_bytes())
            except (OSError, ValueError):
                continue  # whoever uses the file says so
        return found


def _amount(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
