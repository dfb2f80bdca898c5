"""The source of credentials that are ordered: it serves what a store has, and orders what is due.

Both halves are one object, as they share what was read last; they are two tasks, as every replica serves and only the
leader orders. What the leader writes it takes from the store like everybody else, so there is one way from an order to
the World.

A credential is kept until there is a better one: whatever fails, the last certificate is served, expired or not
(an expired one is told apart by clients; no certificate is not). Orders are made one after the other, since the limits
of issuers are counted by account.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.base.later import load
from mesh_pilot.identity.authority.store import MaterialStore, StoreConflict, StoredFiles, StoreError
from mesh_pilot.mesh.names.resources import GATEWAY_CREDENTIAL_PREFIX
from mesh_pilot.model.config import Origin, Problem
from mesh_pilot.model.events import (
    Accepted,
    ChallengeAnswer,
    Challenges,
    Delete,
    EventSender,
    Rejected,
    Replace,
    Secret,
    Synced,
    Upsert,
    item_key,
)
from mesh_pilot.net.fetching.refreshing import THE_OTHERS
from mesh_pilot.sources.acme.issued import IssuedCertificate, IssuerError, Obtain
from mesh_pilot.sources.acme.stored import (
    Account,
    LastOrder,
    StoredCredential,
    covers,
    hosts_of,
    pause_after,
    read_account,
    replace,
    retry_after,
    write_account,
)
from mesh_pilot.sources.acme.wanted import AcmeServer, CertificateDemand, CredentialName, WantedCertificate
from mesh_pilot.sources.files.secrets import make_credential

QUIET_SECONDS = 2.0
"""The time for which the hosts of a credential must be the same before it is ordered: files come one by one."""

ORDER_TIME = timedelta(minutes=6)
"""The longest time of an order; if its replica is killed, no other is made before that is over."""

LOOK_SECONDS = 600.0
"""The longest wait before the clock is looked at again: somebody may set it."""

FIRST_READ_SECONDS = 10.0
"""The time for which a start waits for the store."""

STORE_SECONDS = 60.0
"""The longest wait between tries of a store that fails."""

END_SECONDS = 2.0
"""The time to take back the answers of an order that is cancelled."""

ACCOUNT_PLACE = "account"

NOWHERE = "there is nowhere to keep it: give --ca-dir, --ca-consul-key or a state folder"

log = structlog.get_logger(scope="sources")

StoreOf = Callable[[str], MaterialStore]
"""The store of a name: ``account``, or ``NAMESPACE/NAME`` of a credential."""


@attrs.frozen
class AcmeStatistics:
    """The statistics of ordered credentials."""

    items: int
    """Credentials in force."""
    rejected: int
    """Credentials that cannot be ordered, or whose last order failed."""
    synced: bool
    waiting_for: str
    issued: int
    """Certificates that this replica got since its start."""
    failed: int
    """Orders of this replica that failed since its start."""
    ends: Mapping[str, datetime]
    """The end of the certificate in force, by credential."""


@attrs.define(eq=False)
class _Credential:
    """A credential that is wanted. State: what its store had last, what was sent of it, and what is told about it."""

    name: CredentialName
    wanted: WantedCertificate
    store: MaterialStore | None
    since: float
    """When it came to be wanted as it is."""
    stored: StoredCredential | None = None
    """None: not read yet."""
    secret: Secret | None = None
    unusable: str = ""
    """Why the certificate of the store is not served, or the store cannot be read."""
    unsaved: StoredCredential | None = None
    """Content that the store did not take."""
    told: str = ""
    """The rejection that was sent."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    sleep: trio.CancelScope | None = None
    """The wait for a change of the store."""

    @property
    def path(self) -> str:
        return "/".join(self.name)

    @property
    def trouble(self) -> str:
        if self.wanted.problem or self.unusable:
            return self.wanted.problem or self.unusable
        order = self.stored.order if self.stored is not None else LastOrder()
        if not order.reason:
            return ""
        at = f"; the next order is made after {order.retry_at:%Y-%m-%d %H:%M:%S} UTC" if order.retry_at else ""
        return f"{order.directory}: {order.reason}{at}"


class AcmeSource:
    """Implements ``sources.base.contract.Source``. State: the credentials that are wanted, and counts of orders."""

    name = "acme"

    def __init__(
        self,
        demand: CertificateDemand,
        store_of: StoreOf | None,
        *,
        obtain: Obtain | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``store_of``: None if there is nowhere to keep what is issued. ``now``: the time by the clock."""
        self._demand = demand
        self._store_of = store_of
        self._obtain = obtain
        self._now = now
        self._served: Callable[[tuple[ChallengeAnswer, ...]], Awaitable[None]] | None = None
        self._credentials: dict[CredentialName, _Credential] = {}
        self._before: dict[CredentialName, Secret] = {}
        self._wake = trio.Event()
        self._changed = trio.Event()
        self._synced = False
        self._events: EventSender | None = None
        self._answers: tuple[ChallengeAnswer, ...] = ()
        self._issued = 0
        self._failed = 0

    def __repr__(self) -> str:
        return f"<AcmeSource of {len(self._credentials)} credentials {'synced' if self._synced else 'not synced'}>"

    def wait_served_by(self, served: Callable[[tuple[ChallengeAnswer, ...]], Awaitable[None]]) -> None:
        """``served`` returns once gateways give these answers."""
        self._served = served

    def wake(self) -> None:
        """The demand may have changed."""
        self._wake.set()

    def statistics(self) -> AcmeStatistics:
        known = self._credentials.values()
        leaves = {each.path: each.stored.leaf for each in known if each.secret is not None and each.stored is not None}
        return AcmeStatistics(
            items=sum(1 for each in known if each.secret is not None),
            rejected=sum(1 for each in known if each.told),
            synced=self._synced,
            waiting_for="" if self._synced else THE_OTHERS,
            issued=self._issued,
            failed=self._failed,
            ends={path: leaf.not_valid_after_utc for path, leaf in leaves.items() if leaf is not None},
        )

    def in_words(self, namespace: str, credential: str) -> str:
        """A credential as a Gateway of a namespace names it, for people; empty if it is not ordered."""
        named, _, plain = credential.removeprefix(GATEWAY_CREDENTIAL_PREFIX).rpartition("/")
        found = self._credentials.get((named or namespace, plain))
        if found is None:
            return ""
        end = self.statistics().ends.get(found.path)
        served = f"the certificate ends at {end:%Y-%m-%d %H:%M:%S} UTC" if end is not None else "it is not issued yet"
        return "; ".join(filter(None, (f"{found.path} is ordered by ACME: {served}", found.trouble)))

    # -- serving

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send what the stores have until cancelled."""
        self._synced = False
        self._events = events
        self._before = {name: each.secret for name, each in self._credentials.items() if each.secret is not None}
        self._credentials.clear()
        self._answers = ()
        await events.send(Replace(self.name, (), tuple(self._before.values())))
        deadline = trio.current_time() + FIRST_READ_SECONDS
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._wake = trio.Event()
                is_complete = self._demand.is_complete()
                await self._follow_demand(nursery, is_complete=is_complete)
                is_read = all(each.stored is not None or each.told for each in self._credentials.values())
                if not self._synced and is_complete and (is_read or trio.current_time() >= deadline):
                    self._synced = True
                    await events.send(Synced(self.name))
                    self._change()
                with trio.move_on_at(deadline) if is_complete and not self._synced else trio.CancelScope():
                    await self._wake.wait()

    async def _follow_demand(self, nursery: trio.Nursery, *, is_complete: bool) -> None:
        assert self._events is not None
        wanted = self._demand.wanted_certificates()
        if not (is_complete or self._synced):  # what is missing may be on its way
            wanted = {name: attrs.evolve(each, problem="") for name, each in wanted.items()}
        for name in [name for name in self._credentials if name not in wanted]:
            gone = self._credentials.pop(name)
            gone.scope.cancel()
            if gone.secret is not None:
                await self._events.send(Delete(self.name, item_key(gone.secret)))
            if gone.told:
                await self._events.send(Accepted(self.name, _location(gone)))
            await self._tell_answers()
        for name, asked in wanted.items():
            known = self._credentials.get(name)
            if known is None:
                store = self._store_of("/".join(name)) if self._store_of is not None else None
                known = self._credentials[name] = _Credential(name, asked, store, trio.current_time())
                known.secret = self._before.pop(name, None)
                known.unusable = "" if store is not None else NOWHERE
                if store is not None:
                    nursery.start_soon(self._follow, known, store)
            elif known.wanted != asked:
                known.wanted, known.since = asked, trio.current_time()
            await self._tell_trouble(known)
        while is_complete and self._before:
            await self._events.send(Delete(self.name, item_key(self._before.popitem()[1])))
        self._change()

    async def _follow(self, credential: _Credential, store: MaterialStore) -> None:
        """Send what a store has of a credential, again whenever that changes."""
        backoff = Backoff(limit_seconds=STORE_SECONDS)
        with credential.scope:
            while True:
                try:
                    if credential.unsaved is not None:
                        await replace(store, credential.unsaved.files)
                        credential.unsaved = None
                    stored = await store.read()
                    await self._take(credential, stored)
                    backoff.reset()
                    with trio.CancelScope() as credential.sleep:
                        await store.changed(stored.version)
                except StoreError as error:
                    credential.unusable = str(error)
                    await self._tell_trouble(credential)
                    await trio.sleep(backoff.next_seconds())

    async def _take(self, credential: _Credential, files: StoredFiles) -> None:
        """Serve what was read or written of a credential, unless it is wanted no more."""
        assert self._events is not None
        if self._credentials.get(credential.name) is not credential:
            return
        stored = StoredCredential.of(files)
        secret, problems = _secret(credential.name, stored)
        credential.stored = stored
        credential.unusable = f"what is kept of it cannot be used: {problems[0]}" if problems else ""
        if secret is not None and secret != credential.secret:
            credential.secret = secret
            await self._events.send(Upsert(self.name, secret))
        await self._tell_answers()
        await self._tell_trouble(credential)
        self._wake.set()
        self._change()

    async def _tell_answers(self) -> None:
        assert self._events is not None
        orders = [each.stored.order for each in self._credentials.values() if each.stored is not None]
        found = {answer for order in orders for answer in order.answers}
        answers = tuple(sorted(found, key=lambda each: (each.host, each.token)))
        if answers != self._answers:
            self._answers = answers
            item = Challenges(answers)
            await self._events.send(Upsert(self.name, item) if answers else Delete(self.name, item_key(item)))

    async def _tell_trouble(self, credential: _Credential) -> None:
        assert self._events is not None
        trouble = credential.trouble
        if trouble == credential.told or self._credentials.get(credential.name) is not credential:
            return
        credential.told = trouble
        location = _location(credential)
        if not trouble:
            log.info("credential can be ordered again", credential=credential.path)
            await self._events.send(Accepted(self.name, location))
            return
        stays = "the one that it has is served" if credential.secret is not None else "gateways have none"
        log.warning("credential cannot be ordered", credential=credential.path, reason=trouble, until_then=stays)
        problem = Problem("", f"{trouble}; until then {stays}")
        key = ("credential", *credential.name)  # not the secret's: what is served of it is not refused
        await self._events.send(Rejected(self.name, Origin(self.name, location), (problem,), key))

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # -- orders

    async def lead(self, check: Callable[[], None]) -> None:
        """Order what is due until cancelled. ``check`` raises if another replica leads."""
        while True:
            changed = self._changed
            seconds, credential = self._next()
            if credential is None or seconds > 0:
                with trio.move_on_after(min(seconds, LOOK_SECONDS)):
                    await changed.wait()
                continue
            assert credential.store is not None
            check()
            await self._order(credential, credential.store)

    def _next(self) -> tuple[float, _Credential | None]:
        """The credential that is to be ordered next, and in how many seconds."""
        found: tuple[float, _Credential | None] = (LOOK_SECONDS, None)
        for each in self._credentials.values() if self._synced else ():
            if each.stored is not None and each.store is not None and not each.wanted.problem:
                quiet = each.since + QUIET_SECONDS - trio.current_time()
                seconds = max(self._seconds_to(each.stored.due_at(each.wanted)), quiet)
                if seconds < found[0] or found[1] is None:
                    found = (seconds, each)
        return found

    def _seconds_to(self, at: datetime | None) -> float:
        return (at - self._now()).total_seconds() if at is not None else 0.0

    async def _order(self, credential: _Credential, store: MaterialStore) -> None:
        """Order a credential, unless another replica has done so or has begun to.

        Cancelled, it takes back its answers; the issuer drops the order in time.
        """
        wanted = credential.wanted
        asked = LastOrder(wanted.issuer.directory, wanted.hosts)
        before = StoredCredential()
        is_pending = False

        async def show(answers: tuple[ChallengeAnswer, ...]) -> None:
            content = attrs.evolve(pending, order=attrs.evolve(pending.order, answers=answers))
            await replace(store, content.files)  # an order whose result could not be kept is not worth its count
            await self._take(credential, StoredFiles(content.files))
            if self._served is not None:
                await self._served(answers)

        try:
            found = await store.read()
            before = StoredCredential.of(found)
            if self._seconds_to(before.due_at(wanted)) > 0:
                await self._take(credential, found)
                return
            pending = attrs.evolve(before, order=attrs.evolve(before.order, pending_until=self._now() + ORDER_TIME))
            await store.write(pending.files, found.version)
            is_pending = True
            log.info("credential is ordered", credential=credential.path, hosts=wanted.hosts, at=asked.directory)
            issued = await self._obtained(wanted.issuer, wanted.hosts, show)
            after = self._checked(credential.name, asked, issued)
        except IssuerError as error:
            self._failed += 1
            await self._write(credential, store, attrs.evolve(before, order=self._failure(asked, before, error)))
        except StoreConflict:
            pass  # somebody else has begun to; what that is will be read
        except StoreError as error:
            credential.unusable = str(error)
            await self._tell_trouble(credential)
            if is_pending:
                await self._write(credential, store, before)
            await trio.sleep(STORE_SECONDS)
        except Exception as error:  # ours: an order that fails for it counts like any other
            reason = IssuerError(f"internal error: {type(error).__name__}: {error}")
            await self._write(credential, store, attrs.evolve(before, order=self._failure(asked, before, reason)))
            raise
        except trio.Cancelled:
            if is_pending:
                with trio.CancelScope(deadline=trio.current_time() + END_SECONDS, shield=True), suppress(StoreError):
                    await replace(store, before.files)
            raise
        else:
            self._issued += 1
            log.info("credential is issued", credential=credential.path, hosts=wanted.hosts, at=asked.directory)
            await self._write(credential, store, after, is_dear=True)

    def _checked(self, name: CredentialName, asked: LastOrder, issued: IssuedCertificate) -> StoredCredential:
        """The content to keep of an order that succeeded. Raises IssuerError."""
        after = StoredCredential(issued.chain, issued.private_key, asked)
        _, problems = _secret(name, after)
        leaf = after.leaf
        if problems or leaf is None:
            raise IssuerError(f"what it issued cannot be used: {problems[0] if problems else 'it lacks a certificate'}")
        if not covers(leaf, asked.hosts):
            raise IssuerError(f"what it issued is for {', '.join(hosts_of(leaf))} only")
        return attrs.evolve(after, order=attrs.evolve(asked, retry_at=self._now() + pause_after(leaf)))

    async def _obtained(
        self, issuer: AcmeServer, hosts: tuple[str, ...], show: Callable[[tuple[ChallengeAnswer, ...]], Awaitable[None]]
    ) -> IssuedCertificate:
        assert self._store_of is not None
        accounts = self._store_of(ACCOUNT_PLACE)
        account: Account | None = await read_account(accounts, issuer.directory)
        if self._obtain is None:
            await load("mesh_pilot.sources.acme.protocol")
            from mesh_pilot.sources.acme.protocol import obtain

            self._obtain = obtain
        with trio.move_on_after(ORDER_TIME.total_seconds() - END_SECONDS):
            return await self._obtain(issuer, account, hosts, partial(write_account, accounts), show)
        raise IssuerError(f"it is not done within {ORDER_TIME.total_seconds():g} s")

    def _failure(self, asked: LastOrder, before: StoredCredential, error: IssuerError) -> LastOrder:
        failures = before.order.failures + 1
        wait = retry_after(failures, error.told, error.code == "rateLimited", random.random())
        return attrs.evolve(
            asked, failures=failures, reason=str(error), retry_at=self._now() + max(wait, timedelta(seconds=1))
        )

    async def _write(
        self, credential: _Credential, store: MaterialStore, content: StoredCredential, *, is_dear: bool = False
    ) -> None:
        """Write to the store, and take that at once, also if the store fails; what ``is_dear`` is written later then.

        Not all is: another replica may have ordered since, and what it has written must not be undone.
        """
        credential.unsaved = None
        try:
            await replace(store, content.files)
        except StoreError as error:
            log.error("credential cannot be kept", credential=credential.path, reason=str(error))
            credential.unsaved = content if is_dear else None
        await self._take(credential, StoredFiles(content.files))
        if credential.sleep is not None:
            credential.sleep.cancel()


def _secret(name: CredentialName, stored: StoredCredential) -> tuple[Secret | None, tuple[Problem, ...]]:
    """The credential of what a store has; None, with what is wrong, if it cannot be served."""
    if not stored.certificate and not stored.private_key:
        return None, ()
    namespace, plain = name
    secret, problems = make_credential(plain, namespace, {"tls.crt": stored.certificate, "tls.key": stored.private_key})
    return (None if problems else secret), problems


def _location(credential: _Credential) -> str:
    return f"acme credential {credential.path}"
