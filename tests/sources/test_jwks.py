"""Keys of issuers: fetched when a policy names them, kept while they are not available, gone with the policy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import httpx
import pytest
import trio
import trio.testing

from mesh_pilot.app.sources import PolicyKeySets
from mesh_pilot.identity.trust.key_set_fetch import DISCOVERY, MAX_BYTES, KeySetRef, fetch_keys
from mesh_pilot.model.events import Delete, Event, Item, KeySet, Synced, Upsert
from mesh_pilot.net.fetching import Fetcher, FetchError
from mesh_pilot.sources.jwks import KeySource
from mesh_pilot.sources.jwks.source import REFRESH_SECONDS, KeySetNeed
from mesh_pilot.world import World
from tests.support.worlds import configs

URL = "https://login.example.com/keys"
ISSUER = "https://login.example.com"


def policy(rule: str, name: str = "tokens") -> str:
    return f"""
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: {name}, namespace: shop}}
spec: {{jwtRules: [{rule}]}}
"""


BY_URL = policy(f'{{issuer: "{ISSUER}", jwksUri: "{URL}"}}')
BY_ISSUER = policy(f'{{issuer: "{ISSUER}"}}')


def keys(kid: str) -> str:
    return json.dumps({"keys": [{"k": "YWJj", "kid": kid, "kty": "oct"}]}, separators=(",", ":"), sort_keys=True)


@attrs.define
class Issuer:
    """Answers for keys as a test wants it."""

    answer: str | FetchError = attrs.field(factory=lambda: keys("one"))
    asked: list[tuple[KeySetRef, float]] = attrs.field(factory=list)

    async def fetch(self, wanted: KeySetRef, timeout_seconds: float) -> str:
        await trio.lowlevel.checkpoint()
        self.asked.append((wanted, timeout_seconds))
        if isinstance(self.answer, FetchError):
            raise self.answer
        return self.answer


@attrs.define
class Running:
    """A source at work on a World that takes in what it sends."""

    world: World
    source: KeySource

    async def apply(self, *events: Event) -> None:
        self.world.apply(events)
        self.source.wake()
        await trio.testing.wait_all_tasks_blocked()

    def known(self, issuer: str = "", url: str = "") -> str:
        return self.world.key_sets.peek((issuer, url))


@asynccontextmanager
async def running(
    issuer: Issuer, *texts: str, others_synced: bool = True, seed: Sequence[Item] = ()
) -> AsyncIterator[Running]:
    world = World()
    world.expect("files")
    source = KeySource(PolicyKeySets(world), fetch=issuer.fetch)
    if seed:
        source.seed(seed)
    world.expect(source.name)
    world.apply([Upsert("files", c) for text in texts for c in configs(text)])
    if others_synced:
        world.apply([Synced("files")])
    sender, receiver = trio.open_memory_channel[Event](0)

    async def reduce() -> None:
        async for event in receiver:
            world.apply([event])
            source.wake()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reduce)
        await nursery.start(source.run, sender)
        await trio.testing.wait_all_tasks_blocked()
        yield Running(world, source)
        nursery.cancel_scope.cancel()


def upserts(text: str) -> list[Event]:
    return [Upsert("files", c) for c in configs(text)]


def without(text: str) -> list[Event]:
    return [Delete("files", ("config", *c.key)) for c in configs(text)]


async def test_keys_are_fetched_when_a_policy_names_them_and_are_gone_with_it() -> None:
    issuer = Issuer()
    async with running(issuer) as at:
        assert issuer.asked == []
        await at.apply(*upserts(BY_URL))
        assert at.known(url=URL) == keys("one")
        assert issuer.asked == [(KeySetRef("", URL), 5.0)]
        await at.apply(*without(BY_URL))
        assert at.known(url=URL) == ""
        assert at.source.statistics().items == 0


async def test_without_a_url_the_issuer_is_asked_and_inline_keys_need_nobody() -> None:
    issuer = Issuer()
    async with running(issuer, BY_ISSUER, policy(f"{{issuer: x, jwks: '{keys('inline')}'}}", "inline")) as at:
        assert at.known(issuer=ISSUER) == keys("one")
        assert [w for w, _ in issuer.asked] == [KeySetRef(ISSUER, "")]


async def test_it_syncs_once_the_others_have_and_every_key_set_was_asked_for() -> None:
    issuer = Issuer(FetchError("down"))
    async with running(issuer, BY_URL, others_synced=False) as at:
        assert at.world.unsynced() == ("files", "jwks")
        assert at.source.statistics().waiting_for == "the other sources"
        await at.apply(Synced("files"))
        assert at.world.unsynced() == ()
        assert at.known(url=URL) == ""


async def test_keys_are_fetched_again_in_time_and_the_last_good_ones_stay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    issuer = Issuer()
    async with running(issuer, BY_URL) as at:
        issuer.answer = keys("two")
        await trio.sleep(REFRESH_SECONDS + 1)
        assert at.known(url=URL) == keys("two")
        issuer.answer = FetchError("on fire")
        await trio.sleep(REFRESH_SECONDS + 100)
        assert at.known(url=URL) == keys("two")
        said = at.source.statistics()
        assert (said.items, said.rejected, said.trouble) == (1, 0, "on fire")
        assert said.stale_seconds > 90
        issuer.answer = keys("three")
        await trio.sleep(61)
        assert at.known(url=URL) == keys("three")
        assert at.source.statistics().trouble == ""


async def test_one_that_fails_is_tried_again_and_again_without_holding_up_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    issuer = Issuer(FetchError("no such host"))
    async with running(issuer, BY_URL) as at:
        assert at.source.statistics().rejected == 1
        await trio.sleep(600)
        assert len(issuer.asked) > 9
        issuer.answer = keys("at last")
        await trio.sleep(61)
        assert at.known(url=URL) == keys("at last")


async def test_the_longest_timeout_of_those_who_want_the_same_keys_counts() -> None:
    issuer = Issuer()
    long = policy(f'{{issuer: "{ISSUER}", jwksUri: "{URL}", timeout: 30s}}', "patient")
    async with running(issuer, BY_URL, long):
        assert issuer.asked == [(KeySetRef("", URL), 30.0)]


async def test_started_again_it_says_what_it_knew() -> None:
    issuer = Issuer()
    world = World()
    source = KeySource(PolicyKeySets(world), fetch=issuer.fetch)
    world.apply(upserts(BY_URL))
    sender, receiver = trio.open_memory_channel[Event](100)
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            await nursery.start(source.run, sender)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        while True:
            try:
                world.apply([receiver.receive_nowait()])
            except trio.WouldBlock:
                break
        issuer.answer = FetchError("down since")
    assert world.key_sets.peek(("", URL)) == keys("one")


# -- after a restart

SEED = (KeySet("", URL, keys("yesterday")), KeySet(ISSUER, "", keys("of an issuer")))


async def test_keys_of_an_earlier_run_stay_until_they_are_fetched(autojump_clock: trio.testing.MockClock) -> None:
    issuer = Issuer(FetchError("down"))
    async with running(issuer, BY_URL, seed=SEED) as at:
        assert at.known(url=URL) == keys("yesterday")
        assert at.known(issuer=ISSUER) == "", "no policy needs them"
        issuer.answer = keys("today")
        await trio.sleep(61)
        assert at.known(url=URL) == keys("today")
        await at.apply(*upserts(policy(f'{{issuer: "{ISSUER}"}}', "late")))
        assert at.known(issuer=ISSUER) == keys("today")


async def test_keys_of_an_earlier_run_wait_for_policies_that_are_not_known_yet() -> None:
    issuer = Issuer(FetchError("down"))
    async with running(issuer, BY_URL, others_synced=False, seed=SEED) as at:
        assert at.known(issuer=ISSUER) == keys("of an issuer")
        assert at.world.unsynced() == ("files",), "keys that come now are no longer stale"
        await at.apply(*without(BY_URL), Synced("files"))
        assert at.known(url=URL) == at.known(issuer=ISSUER) == "", "they are not needed"


async def test_keys_of_an_earlier_run_that_nobody_needed_are_forgotten() -> None:
    issuer = Issuer(FetchError("down"))
    async with running(issuer, BY_URL, seed=SEED) as at:
        await at.apply(*upserts(policy(f'{{issuer: "{ISSUER}"}}', "late")))
        assert at.known(issuer=ISSUER) == ""


# -- over HTTP


def answering(routes: dict[str, httpx.Response]) -> Fetcher:
    def answer(request: httpx.Request) -> httpx.Response:
        return routes.get(str(request.url), httpx.Response(404))

    return Fetcher(transport=httpx.MockTransport(answer))


async def test_keys_are_read_from_the_url_or_from_where_the_issuer_says() -> None:
    found = httpx.Response(200, json={**json.loads(keys("a")), "more": 1})
    discovery = httpx.Response(200, json={"jwks_uri": URL})
    fetcher = answering({URL: found, ISSUER + DISCOVERY: discovery})
    for wanted in (KeySetRef("", URL), KeySetRef(ISSUER, ""), KeySetRef(ISSUER + "/", "")):
        assert await fetch_keys(fetcher, wanted, 1) == keys("a")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(503), f"{URL} answers 503"),
        (httpx.Response(200, text="<html>"), f"{URL} answers with what is not JSON"),
        (httpx.Response(200, json=[1]), f"{URL} answers with what is not a JSON object"),
        (httpx.Response(200, json={"keys": {}}), f"{URL} is not a JSON Web Key Set"),
        (httpx.Response(200, json={"keys": []}), f"{URL} has no key that proxies can use: it is empty"),
        (httpx.Response(200, json={"keys": [{"kty": "RSA"}]}), f"{URL} has no key that proxies can use: keys[0]"),
        (httpx.Response(200, content=b"[" * 100_000), f"{URL} answers with what is not JSON"),
        (httpx.Response(200, content=b" " * (MAX_BYTES + 1)), f"{URL} answers with more than"),
    ],
)
async def test_what_is_no_key_set_is_said_in_words(answer: httpx.Response, reason: str) -> None:
    with pytest.raises(FetchError) as caught:
        await fetch_keys(answering({URL: answer}), KeySetRef("", URL), 1)
    assert str(caught.value).startswith(reason)


async def test_an_issuer_that_is_no_url_needs_its_keys_told() -> None:
    with pytest.raises(FetchError, match="give jwksUri, or jwks"):
        await fetch_keys(answering({}), KeySetRef("robots@example.com", ""), 1)
    with pytest.raises(FetchError, match="answers 404"):
        await fetch_keys(answering({}), KeySetRef(ISSUER, ""), 1)


@pytest.mark.parametrize("url", ["http://[x", "http://a..b/", "http://a:b/", "http://\u2488com/", "http://a/\n"])
async def test_a_url_that_no_client_can_ask_is_said_in_words_too(url: str) -> None:
    said = httpx.Response(200, json={"jwks_uri": url})
    for wanted in (KeySetRef("", url), KeySetRef(url, "")):
        with pytest.raises(FetchError):
            await fetch_keys(Fetcher(environment={}), wanted, 1)
    with pytest.raises(FetchError):
        await fetch_keys(answering({ISSUER + DISCOVERY: said}), KeySetRef(ISSUER, ""), 1)


async def test_a_fetch_that_fails_does_not_look_at_all_policies(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    rules = ", ".join(f'{{issuer: i{number}, jwksUri: "https://keys.test/{number}"}}' for number in range(60))
    looks = Counter[str]()
    wanted = PolicyKeySets.wanted_key_sets

    def counted(self: PolicyKeySets) -> Mapping[KeySetRef, KeySetNeed]:
        looks["all"] += 1
        return wanted(self)

    monkeypatch.setattr(PolicyKeySets, "wanted_key_sets", counted)
    issuer = Issuer(FetchError("refused"))
    async with running(issuer, policy(rules)) as found:
        assert found.world.unsynced() == ()
        assert len(issuer.asked) == 60
    assert looks["all"] < 10
