"""Changes of the config store by whoever may operate: what is there, what is expected, what becomes of it, and who.

Each change, and each that is refused, is a line in the log: who, which object, from which version to which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

import attrs
import structlog
import trio

from mesh_pilot.model.config import Config, ConfigKey, Origin
from mesh_pilot.ops.api.config_body import Proposed, config_of, is_same
from mesh_pilot.ops.api.route import ApiError
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.sources.config_store.base import (
    ConfigConflict,
    ConfigRefusal,
    ConfigStore,
    ConfigStoreError,
    Object,
    Stored,
)

log = structlog.get_logger(scope="admin")

TRIES = 5
"""Attempts of a change that expects no version, while others change the object, too."""

ANY = "*"
"""The version of an object that is expected to exist."""


class ChangeAction(StrEnum):
    """The outcome of a change, in kubectl's words."""

    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@attrs.frozen
class Expectation:
    """The state that a writer takes an object to be in; without either: any."""

    version: str = ""
    """The object's version, or ``*`` for any."""
    is_new: bool = False
    """There is none."""


@attrs.frozen
class Author:
    """Whoever changes something, for the log."""

    name: str
    how: str
    subject: Mapping[str, str] = attrs.field(factory=dict)
    """The field of the log that tells people of one name apart."""


@attrs.frozen
class Changed:
    """A change that was made, or would be."""

    action: ChangeAction
    key: ConfigKey
    before: str
    """The version before; empty where there was none."""
    after: str
    """The version after; empty where there is none."""
    location: str
    config: Config | None
    """The config that should come into force; None for an object that is gone."""


@attrs.frozen
class ConfigChanges:
    """Changes the store of a control plane. Every method raises ApiError."""

    state: PlaneState
    author: Author

    @property
    def store(self) -> ConfigStore:
        """The store."""
        if self.state.config_store is None:
            raise ApiError(
                409,
                "this control plane has no config store: start mesh-pilot discovery with --config-store"
                " (docs/config-store.md)",
            )
        return self.state.config_store

    async def read(self, key: ConfigKey) -> Stored | None:
        """The object in the store; None if there is none there, or no store."""
        store = self.state.config_store
        if store is None or self._elsewhere(store, key):
            return None
        try:
            return await store.read(key, self._at(store, key))
        except ConfigRefusal:
            return None
        except ConfigStoreError as error:
            raise ApiError(503, str(error)) from None

    async def put(self, key: ConfigKey, new: Proposed, expected: Expectation, *, dry_run: bool) -> Changed:
        """Create an object, or put it in the place of the one that is there."""
        with self._audited(key, "PUT", dry_run):
            store = self._ready()
            if origin := self._elsewhere(store, key):
                raise ApiError(409, _elsewhere_text(key, origin, store), where=str(origin))
            for is_last in [False] * (TRIES - 1) + [True]:
                before = await self._before(store, key, expected)
                if before is not None and self._says(before, key, new):
                    return Changed(
                        ChangeAction.UNCHANGED, key, before.version, before.version, before.location, new.config
                    )
                try:
                    at = self._at(store, key)
                    with self._writing(key, dry_run):
                        after = await store.write(key, new.document, before, at=at, dry_run=dry_run)
                except ConfigConflict as error:
                    if is_last or expected != Expectation():
                        raise ApiError(409, _conflict_text(error)) from None
                    continue
                action = ChangeAction.CREATED if before is None else ChangeAction.CONFIGURED
                found = _is_now(after.document, key, new.config)
                version = before.version if before is not None else ""
                return self._log(Changed(action, key, version, after.version, after.location, found), dry_run)
            raise AssertionError

    async def delete(self, key: ConfigKey, expected: Expectation, *, dry_run: bool) -> Changed:
        """Remove an object."""
        with self._audited(key, "DELETE", dry_run):
            store = self._ready()
            for is_last in [False] * (TRIES - 1) + [True]:
                before = await self._before(store, key, expected)
                if before is None:
                    if origin := self._elsewhere(store, key):
                        raise ApiError(409, _elsewhere_text(key, origin, store), where=str(origin))
                    raise ApiError(404, f"{key} is not in the {store.place}")
                try:
                    if not dry_run:
                        self.state.reducer.intake.expect_deletion(("config", *key), trio.current_time())
                    with self._writing(key, dry_run):
                        await store.delete(key, before, dry_run=dry_run)
                except ConfigConflict as error:
                    if is_last or expected != Expectation():
                        raise ApiError(409, _conflict_text(error)) from None
                    continue
                return self._log(Changed(ChangeAction.DELETED, key, before.version, "", before.location, None), dry_run)
            raise AssertionError

    @contextmanager
    def _writing(self, key: ConfigKey, dry_run: bool) -> Iterator[None]:
        """Have the history name the author of what is written."""
        item, intake = ("config", *key), self.state.reducer.intake
        intake.written_by(item, "" if dry_run else self.author.name, trio.current_time())
        try:
            yield
        except ConfigStoreError:
            intake.written_by(item, "", trio.current_time())
            raise

    # -- what is there

    def _ready(self) -> ConfigStore:
        """The store, once its source has told what is there."""
        store = self.store
        if store.source in self.state.world.unsynced():
            raise ApiError(503, f"source {store.source} has not been read yet, so its content is unknown: try again")
        return store

    def _elsewhere(self, store: ConfigStore, key: ConfigKey) -> Origin | None:
        """The place of the object in force, if that is not of the store's source."""
        config = self.state.world.config.peek(key)
        if config is None or (config.origin.source == store.source and not config.made_from):
            return None
        return config.origin

    def _at(self, store: ConfigStore, key: ConfigKey) -> str:
        """The location of an object as its source has told it, good or bad; empty if it has told none."""
        item = ("config", *key)
        known = self.state.world.item_of(store.source, item)
        if isinstance(known, Config):
            return known.origin.location
        rejected = (each for each in self.state.world.rejections() if each.key == item and each.source == store.source)
        return next((each.origin.location for each in rejected), "")

    async def _before(self, store: ConfigStore, key: ConfigKey, expected: Expectation) -> Stored | None:
        """The object as it is now, if it is as expected."""
        try:
            found = await store.read(key, self._at(store, key))
        except ConfigRefusal as error:
            raise ApiError(409, str(error)) from None
        if expected.is_new and found is not None:
            reason = f"{key} is there already, at version {found.version}: leave out If-None-Match to change it"
            raise ApiError(412, reason, version=found.version)
        if expected.version and found is None:
            raise ApiError(412, f"{key} is not there (any more): leave out the version to create it", version="")
        if found is not None and expected.version not in ("", ANY, found.version):
            raise ApiError(
                412,
                f"{key} has changed: it is at version {found.version}, not {expected.version}; read it again and make"
                " your change in that, or leave out the version to overwrite what others wrote",
                version=found.version,
            )
        return found

    def _says(self, before: Stored, key: ConfigKey, new: Proposed) -> bool:
        """True if what is there already says the same."""
        if before.document is None:
            return False
        known = config_of(before.document, key, Origin("api"))
        same_status = before.document.get("status") == new.document.get("status") or "status" not in new.document
        return same_status and is_same(known, new.config)

    # -- the log

    def _log(self, changed: Changed, dry_run: bool) -> Changed:
        if not dry_run:
            log.info(
                "config changed",
                user=self.author.name,
                **self.author.subject,
                by=self.author.how,
                action=changed.action.value,
                object=str(changed.key),
                version_before=changed.before,
                version=changed.after,
                where=changed.location,
            )
        return changed

    @contextmanager
    def _audited(self, key: ConfigKey, method: str, dry_run: bool) -> Iterator[None]:
        try:
            yield
        except ConfigStoreError as error:
            refusal = ApiError(409 if isinstance(error, ConfigRefusal) else 503, str(error))
            note_refusal(self.author, str(key), method, refusal, dry_run)
            raise refusal from None
        except ApiError as error:
            note_refusal(self.author, str(key), method, error, dry_run)
            raise


def note_refusal(author: Author, name: str, method: str, error: ApiError, dry_run: bool) -> None:
    """Log a change that is refused."""
    if not dry_run:
        log.warning(
            "config change refused",
            user=author.name,
            **author.subject,
            by=author.how,
            action=method,
            object=name,
            status=error.status,
            reason=str(error)[:500],
        )


def _is_now(document: Object | None, key: ConfigKey, sent: Config) -> Config:
    """The config that a store has made of what it was sent: a server may have set defaults."""
    return (config_of(document, key, Origin("api")) if document is not None else None) or sent


def _elsewhere_text(key: ConfigKey, origin: Origin, store: ConfigStore) -> str:
    return (
        f"{key} is defined at {origin}, by source {origin.source}, not in the {store.place}: change it there, or remove"
        " it there first"
    )


def _conflict_text(error: ConfigConflict) -> str:
    return f"{error}: read it again and decide again"
