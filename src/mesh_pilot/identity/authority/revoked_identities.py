"""Identities that are revoked until a time: no evidence of theirs counts until then, whatever it is.

A revoked certificate is one of many that its owner may have, and can renew; a revoked identity gets nothing. The list
is a file among those of the CA, so that all replicas that share the CA share it:

    {"spiffe://cluster.local/ns/shop/sa/web": "2026-12-01T00:00:00Z"}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog
import trio

from mesh_pilot.identity.authority.material import IDENTITIES, AuthorityError
from mesh_pilot.identity.authority.store import MaterialStore, StoreError
from mesh_pilot.model.spiffe import FORM, Identity, parse_identity, workload_path

log = structlog.get_logger(scope="security")

RETRY_SECONDS = 5.0
"""The wait after the store could not be read."""

Untils = Mapping[Identity, datetime]


def read_identities(files: Mapping[str, bytes], place: str) -> Untils:
    """The list among the files of ``place``; empty without such a file. Raises AuthorityError."""
    if IDENTITIES not in files:
        return {}
    where = f"{place}: {IDENTITIES}"
    try:
        entries = json.loads(files[IDENTITIES])
    except (ValueError, RecursionError) as error:
        raise AuthorityError(f"{where}: is not JSON: {error}") from None
    if not isinstance(entries, dict):
        raise AuthorityError(f"{where}: is not a JSON object of identities with the times until when they are revoked")
    found: dict[Identity, datetime] = {}
    for name, text in entries.items():
        identity = parse_identity(name)
        if identity is None:
            raise AuthorityError(f"{where}: {name[:300]!r} is not of the form {FORM}")
        try:
            found[identity] = read_time(text)
        except (ValueError, TypeError):
            raise AuthorityError(f"{where}: the time of {name} is not as in 2026-12-01T00:00:00Z") from None
    return found


def with_identity(
    files: Mapping[str, bytes], place: str, identity: Identity, until: datetime, now: datetime
) -> dict[str, bytes]:
    """The files with an identity revoked until a time; one that is over lifts it. Raises AuthorityError."""
    untils = {**read_identities(files, place), identity: until}
    left = {str(each): f"{end:%FT%TZ}" for each, end in sorted(untils.items(), key=str) if end > now}
    rest = {name: content for name, content in files.items() if name != IDENTITIES}
    return {**rest, IDENTITIES: json.dumps(left, indent=1).encode() + b"\n"} if left else rest


def read_time(text: str) -> datetime:
    """A time in UTC, such as ``2026-12-01T00:00:00Z`` or ``2026-12-01``. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)


class RevokedIdentities:
    """The list in force. Mutable state: the list."""

    def __init__(self, now: Callable[[], datetime], untils: Untils | None = None) -> None:
        self._now = now
        self.untils: Untils = untils or {}

    def take(self, untils: Untils) -> None:
        """Put another list in force, and say who is on it for the first time, or no longer."""
        if untils == self.untils:
            return
        log.warning(
            "revoked identities have changed",
            revoked={str(each): f"{end:%F %T} UTC" for each, end in untils.items() if end > self._now()},
            lifted=[str(each) for each in self.untils if each not in untils],
        )
        self.untils = untils

    def until(self, identity: Identity) -> datetime | None:
        """The time until when an identity is revoked, in whichever trust domain; None if it is not."""
        ends = (end for each, end in self.untils.items() if _path(each) == _path(identity)) if self.untils else ()
        end = max(ends, default=None)
        return end if end is not None and end > self._now() else None

    async def follow(self, store: MaterialStore, changed: Callable[[], None]) -> None:
        """Follow a store of which only this list is read (an external CA signs); ``changed`` is called on changes."""
        version = ""
        while True:
            try:
                stored = await store.read()
                if stored.version != version:
                    version = stored.version
                    self.take(read_identities(stored.files, store.place))
                    changed()
                await store.changed(version)
            except (StoreError, AuthorityError) as error:
                log.warning("revoked identities cannot be read; keeping the last list", reason=str(error))
                await trio.sleep(RETRY_SECONDS)


def _path(identity: Identity) -> str:
    return workload_path(identity.namespace, identity.service_account)
