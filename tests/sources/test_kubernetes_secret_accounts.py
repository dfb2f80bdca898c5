"""Who may have the keys in a Kubernetes: service accounts that may read Secrets there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import attrs
import trio
from trio.testing import MockClock

from mesh_pilot.kubernetes.apiserver import ApiClient, ApiServerError, KubernetesError
from mesh_pilot.kubernetes.source.secret_accounts import ALLOWED_SECONDS, DENIED_SECONDS, Account, SecretAccounts
from mesh_pilot.model.events import Grant

GATEWAY, OTHER = ("shop", "gateway"), ("shop", "web")


@attrs.define
class Reviewer:
    """An API server that reviews: what it answers, and whom it was asked for."""

    allowed: set[str] = attrs.field(factory=set)
    error: KubernetesError | None = None
    asked: list[str] = attrs.field(factory=list)

    async def create(self, resource: Any, body: Any) -> Any:
        assert body["spec"]["resourceAttributes"] == {"namespace": "shop", "verb": "list", "resource": "secrets"}
        user = body["spec"]["user"]
        self.asked.append(user)
        if self.error is not None:
            raise self.error
        return {"status": {"allowed": user in self.allowed}}


async def ruled(reviewer: Reviewer, connected: set[Account], story: Callable[[SecretAccounts, list[str]], Any]) -> None:
    """A story told to rulings at work; their changes are the second argument."""
    accounts, changes = SecretAccounts(lambda: connected), list[str]()

    async def changed(namespace: str) -> None:
        changes.append(namespace)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accounts.run, cast(ApiClient, reviewer), changed)
        await story(accounts, changes)
        nursery.cancel_scope.cancel()


async def test_an_account_is_asked_for_once_and_again_when_the_answer_is_old(autojump_clock: MockClock) -> None:
    reviewer = Reviewer({"system:serviceaccount:shop:gateway"})

    async def story(accounts: SecretAccounts, changes: list[str]) -> None:
        accounts.came(GATEWAY)
        await trio.sleep(1)
        assert reviewer.asked == [], "there are no keys in its namespace"
        accounts.has_keys("shop")
        await trio.sleep(1)
        assert accounts.grants("shop") == (Grant("shop", "gateway"),)
        assert (sorted(reviewer.asked), changes) == (
            ["system:serviceaccount:shop:gateway", "system:serviceaccount:shop:web"],
            ["shop"],
        )
        accounts.came(GATEWAY)
        await trio.sleep(DENIED_SECONDS + 20)
        assert reviewer.asked.count("system:serviceaccount:shop:gateway") == 1
        assert reviewer.asked.count("system:serviceaccount:shop:web") == 2
        reviewer.allowed.clear()
        await trio.sleep(ALLOWED_SECONDS)
        assert accounts.grants("shop") == ()
        assert changes == ["shop", "shop"]

    await ruled(reviewer, {GATEWAY, OTHER, ("bank", "web")}, story)


async def test_an_outage_takes_no_grant_away_and_a_refusal_does(autojump_clock: MockClock) -> None:
    reviewer, connected = Reviewer({"system:serviceaccount:shop:gateway"}), {GATEWAY}

    async def story(accounts: SecretAccounts, changes: list[str]) -> None:
        accounts.has_keys("shop")
        await trio.sleep(1)
        reviewer.error = KubernetesError("away")
        await trio.sleep(3 * ALLOWED_SECONDS)
        assert accounts.grants("shop") == (Grant("shop", "gateway"),)
        reviewer.error = ApiServerError(403, "Forbidden", "no")
        await trio.sleep(2 * ALLOWED_SECONDS)
        assert accounts.grants("shop") == ()

    await ruled(reviewer, connected, story)


async def test_accounts_without_proxies_are_forgotten(autojump_clock: MockClock) -> None:
    reviewer, connected = Reviewer({"system:serviceaccount:shop:gateway"}), {GATEWAY}

    async def story(accounts: SecretAccounts, changes: list[str]) -> None:
        accounts.has_keys("shop")
        await trio.sleep(1)
        connected.clear()
        await trio.sleep(2 * ALLOWED_SECONDS)
        assert accounts.grants("shop") == ()
        assert len(reviewer.asked) == 1

    await ruled(reviewer, connected, story)
