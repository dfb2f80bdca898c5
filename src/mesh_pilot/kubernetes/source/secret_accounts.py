"""The service accounts that may read the Secrets of their namespace: their proxies get the keys of credentials there.

Istiod's rule (``CredentialsController.Authorize``): a SubjectAccessReview for ``list secrets``. An answer holds for
five minutes if it is yes, and for one if it is no.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import attrs
import structlog
import trio

from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, ApiServerError, KubernetesError
from mesh_pilot.model.events import Grant

log = structlog.get_logger(scope="sources")

REVIEWS = ApiResource(
    "authorization.k8s.io", ("v1",), "subjectaccessreviews", "SubjectAccessReview", cluster_scoped=True
)

ALLOWED_SECONDS, DENIED_SECONDS = 300.0, 60.0
LOOK_SECONDS = 10.0
"""The interval at which connected proxies are looked through, for answers that are too old and new accounts."""

MAX_ACCOUNTS = 10_000
"""More are not asked for: what proxies call themselves must not cost without end."""

Account = tuple[str, str]
"""Namespace and name."""


@attrs.frozen
class Ruling:
    """An answer, and until when it holds."""

    is_allowed: bool
    until: float


class SecretAccounts:
    """The rulings on the accounts of connected proxies.

    State: `_namespaces`, those with keys; `_rulings`, by account; `_waiting`, accounts to ask for.
    """

    def __init__(self, connected: Callable[[], Iterable[Account]]) -> None:
        """``connected``: the proven accounts of the proxies that are connected."""
        self._connected = connected
        self._namespaces: set[str] = set()
        self._rulings: dict[Account, Ruling] = {}
        self._waiting: dict[Account, None] = {}
        self._news = trio.Event()
        self._has_complained = False
        self.is_used = False
        """True once a source asks it."""

    def __repr__(self) -> str:
        allowed = sum(ruling.is_allowed for ruling in self._rulings.values())
        return f"<SecretAccounts {allowed} of {len(self._rulings)} allowed, {len(self._waiting)} to ask for>"

    def has_keys(self, namespace: str) -> None:
        """There are keys in a namespace."""
        if namespace not in self._namespaces:
            self._namespaces.add(namespace)
            self._news.set()

    def came(self, account: Account) -> None:
        """A proxy of an account has connected."""
        if account[0] in self._namespaces and account not in self._rulings and len(self._rulings) < MAX_ACCOUNTS:
            self._waiting[account] = None
            self._news.set()

    def grants(self, namespace: str) -> tuple[Grant, ...]:
        """The accounts of a namespace that may have its keys."""
        allowed = (account for account, ruling in self._rulings.items() if ruling.is_allowed)
        return tuple(sorted((Grant(*each) for each in allowed if each[0] == namespace), key=attrs.astuple))

    async def run(self, client: ApiClient, changed: Callable[[str], Awaitable[None]]) -> None:
        """Ask until cancelled; ``changed`` is told of a namespace whose grants have changed."""
        while True:
            now = trio.current_time()
            connected = set(self._connected())
            for account in self._rulings.keys() - connected:
                if self._rulings[account].until < now:
                    await self._put(account, None, changed)
            for account in connected:
                ruling = self._rulings.get(account)
                if ruling is None:
                    self.came(account)
                elif ruling.until < now:
                    self._waiting[account] = None
            while self._waiting:
                account = next(iter(self._waiting))
                del self._waiting[account]
                await self._ask(client, account, changed)
            self._news = trio.Event()
            with trio.move_on_after(LOOK_SECONDS):
                await self._news.wait()

    async def _ask(self, client: ApiClient, account: Account, changed: Callable[[str], Awaitable[None]]) -> None:
        namespace, name = account
        attributes = {"namespace": namespace, "verb": "list", "resource": "secrets"}
        review = {"spec": {"resourceAttributes": attributes, "user": f"system:serviceaccount:{namespace}:{name}"}}
        try:
            found = await client.create(REVIEWS, review)
            is_allowed = (found.get("status") or {}).get("allowed") is True
        except KubernetesError as error:
            if not self._has_complained:
                self._has_complained = True
                log.warning("it cannot be asked who may read Secrets; earlier answers are kept", why=str(error))
            before = self._rulings.get(account)
            is_allowed = before is not None and before.is_allowed and not _is_refusal(error)
        else:
            self._has_complained = False
        seconds = ALLOWED_SECONDS if is_allowed else DENIED_SECONDS
        await self._put(account, Ruling(is_allowed, trio.current_time() + seconds), changed)

    async def _put(self, account: Account, ruling: Ruling | None, changed: Callable[[str], Awaitable[None]]) -> None:
        before = self._rulings.pop(account, None)
        if ruling is not None:
            self._rulings[account] = ruling
        if (before is not None and before.is_allowed) != (ruling is not None and ruling.is_allowed):
            await changed(account[0])


def _is_refusal(error: KubernetesError) -> bool:
    return isinstance(error, ApiServerError) and error.status in (401, 403)
