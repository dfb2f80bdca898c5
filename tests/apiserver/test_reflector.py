"""A reflector at a server that does everything wrong, on a clock that jumps, without sockets."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.kubernetes.apiserver import ApiResource, decoding, reflector
from mesh_pilot.kubernetes.apiserver import client as client_module
from tests.apiserver.following import following, pod
from tests.support.api_double import PODS, ApiDouble

ROUTES = ApiResource("networking.istio.io", ("v1alpha3", "v1"), "virtualservices", "VirtualService")


def double_with(*names: str, resources: tuple[ApiResource, ...] = (PODS,), **settings: object) -> ApiDouble:
    double = ApiDouble(resources, **settings)  # type: ignore[arg-type]
    for name in names:
        double.put(PODS, pod(name))
    return double


def asked(double: ApiDouble, text: str) -> int:
    return sum(text in request for request in double.requests)


WAYS = pytest.mark.parametrize("streaming", ["yes", "invalid", "event", "ignored"])


@WAYS
async def test_it_lists_and_then_tells_what_changes(streaming: str, autojump_clock: MockClock) -> None:
    double = double_with("a", "b", "c", streaming_lists=streaming, largest_page=2)
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        double.put(PODS, pod("b", image="2"))
        double.put(PODS, pod("d"))
        double.remove(PODS, "a", "shop")
        await seen.until(lambda: len(seen.told) == 4)
        assert seen.take() == ["listed a b c", "there b", "there d", "gone a"]
        assert not seen.losses, "that the server has no streaming lists is not an error"
        assert asked(double, "sendInitialEvents") == 1
        assert seen.client.streams_lists == (streaming == "yes")
        async with following(double, client=seen.client) as other:
            await other.until(lambda: other.version)
        assert asked(double, "sendInitialEvents") == (2 if streaming == "yes" else 1), "it is remembered"


async def test_lists_name_no_version_and_watches_one(autojump_clock: MockClock) -> None:
    double = double_with("a", streaming_lists="invalid")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until(lambda: asked(double, "watch=true&allowWatchBookmarks=true&timeoutSeconds") > 1)
    lists = [request for request in double.requests if "limit=500" in request]
    assert lists == ["GET /api/v1/pods?limit=500"]
    assert double.requests[-1].endswith("&resourceVersion=2")


async def test_what_happens_before_the_end_of_a_streaming_list_is_part_of_it(autojump_clock: MockClock) -> None:
    double = double_with("a", "b", "c", streaming_lists="ignored")

    async def removed_in_a_new_list(name: str, *before: object) -> None:
        await double.until(lambda: [watch for watch in double.watches if watch not in before])
        await trio.sleep(1)
        double.remove(PODS, name, "shop")
        await trio.sleep(1)

    def end_of_list() -> None:
        double.watches[0].bookmark({"k8s.io/initial-events-end": "true"})
        double.wake()

    async with following(double) as seen:
        await removed_in_a_new_list("c")
        lists = [*double.watches]
        double.cut_watches()  # what went is not a place from which to go on
        await removed_in_a_new_list("b", *lists)
        end_of_list()
        await seen.until(lambda: seen.version)
        assert seen.take() == ["listed a"]
        lists += double.watches
        double.gone_watches()
        double.put(PODS, pod("d"))
        await removed_in_a_new_list("a", *lists)
        end_of_list()
        await seen.until(lambda: len(seen.told) == 2)
        assert sorted(seen.take()) == ["gone a", "there d"]


@pytest.mark.parametrize("how", ["status", "event", "in the middle", "of the list"])
@WAYS
async def test_a_version_that_is_gone_has_it_listed_again_and_only_differences_told(
    how: str, streaming: str, autojump_clock: MockClock
) -> None:
    double = double_with("a", "b", "c", streaming_lists=streaming)
    double.gone_as_event = how == "event"
    if how == "of the list":
        double.fail("GET /api/v1/pods", 410, reason="Expired")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        await trio.sleep(5)
        assert seen.take() == ["listed a b c"]
        if how == "in the middle":
            double.gone_watches()
        else:
            double.end_watches()
        double.put(PODS, pod("b", image="2"))
        double.put(PODS, pod("d"))
        double.remove(PODS, "a", "shop")
        double.compact()
        await seen.until(lambda: len(seen.told) == 3)
        await double.until_watched("pods")
        assert sorted(seen.take()) == ["gone a", "there b", "there d"]
        assert seen.losses == [] or how == "of the list"


async def test_a_token_that_expires_in_the_middle_of_a_list_loses_nothing(autojump_clock: MockClock) -> None:
    double = double_with(*"abcde", streaming_lists="invalid", largest_page=2)
    double.fail("GET /api/v1/pods?limit=500&continue", 410, reason="Expired")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        assert seen.take() == ["listed a b c d e"]
        await double.until_watched("pods")
        double.fail("GET /api/v1/pods?limit=2000&continue", 410, reason="Expired")
        double.put(PODS, pod("c", image="2"))
        await seen.until(lambda: seen.told)
        double.remove(PODS, "e", "shop")
        double.gone_watches()
        await seen.until(lambda: "gone e" in seen.told)
        assert seen.take() == ["there c", "gone e"]


async def test_a_page_that_is_too_large_is_asked_for_in_smaller_ones(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(client_module.ApiClient.request_text, "__kwdefaults__", {
        **client_module.ApiClient.request_text.__kwdefaults__, "max_bytes": 4000})  # fmt: skip
    double = double_with(*"abcdefghijklmnopqrst", streaming_lists="invalid")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        assert len(seen.objects) == 20
    assert asked(double, "limit=7") > 1


async def test_a_server_of_an_older_backup_is_noticed_and_only_differences_told(autojump_clock: MockClock) -> None:
    double = double_with("a", "b", "c")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        before = double.snapshot()
        double.put(PODS, pod("a", image="2"))
        double.put(PODS, pod("d"))
        double.remove(PODS, "b", "shop")
        await seen.until(lambda: len(seen.told) == 4)
        seen.take()
        double.restore(before)
        await seen.until(lambda: len(seen.told) == 3)
        assert sorted(seen.take()) == ["gone d", "there a", "there b"]
        await double.until_watched("pods")
        double.put(PODS, pod("e"))
        await seen.until(lambda: seen.told)
        assert seen.take() == ["there e"]


async def test_a_bookmark_of_an_older_version_is_noticed(autojump_clock: MockClock) -> None:
    double = double_with("a", "b")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        before = double.snapshot()
        double.remove(PODS, "a", "shop")
        await seen.until(lambda: "gone a" in seen.told)
        double.revision, double.objects, double.history = before.revision, before.objects, []
        double.bookmark()
        await seen.until(lambda: "there a" in seen.told)


async def test_half_open_connections_are_found(autojump_clock: MockClock) -> None:
    double = double_with("a")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        await trio.sleep(100)  # in which the server has sent a bookmark
        double.silent = True
        began = trio.current_time()
        await seen.until(lambda: seen.losses)
        assert "a watch was silent for" in seen.losses[0]
        assert trio.current_time() - began <= reflector.BOOKMARK_SECONDS
        double.silent = False
        double.put(PODS, pod("b"))
        await seen.until(lambda: "there b" in seen.told)
        assert not seen.is_lost


async def test_one_that_sends_no_bookmarks_has_until_the_end_of_the_watch(autojump_clock: MockClock) -> None:
    double = double_with("a", bookmark_seconds=1e9)
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        await trio.sleep(2000)
        assert not seen.losses
        assert 6 <= asked(double, "watch=true") <= 12, "each ends on its own"
        double.silent = True
        began = trio.current_time()
        await seen.until(lambda: seen.losses)
        assert trio.current_time() - began <= reflector.WATCH_SECONDS[1] + reflector.GRACE_SECONDS


async def test_a_server_that_asks_for_patience_gets_it(autojump_clock: MockClock) -> None:
    double = double_with("a")
    double.fail("GET /api/v1/pods", 429, "too many requests", retry_after=90)
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        assert 90 <= trio.current_time() <= 90 * 1.25
        assert seen.losses[0].endswith("/api/v1/pods is refused: 429 too many requests")


async def test_without_permission_objects_stay_and_it_is_tried_again(autojump_clock: MockClock) -> None:
    double = double_with("a")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        double.forbid("pods")
        double.remove(PODS, "a", "shop")
        await trio.sleep(600)
        assert seen.take() == ["listed a"]
        assert seen.is_lost
        assert int(seen.losses[-1].partition("is refused: ")[2][:3]) == 403
        assert 15 <= len(seen.losses) <= 30, "at most each half a minute"
        double.allow("pods")
        await seen.until(lambda: seen.told and not seen.is_lost)
        assert seen.take() == ["gone a"]


async def test_without_permission_to_watch_every_page_is_listed_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    double = double_with("a", "b", "c", largest_page=1)
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        double.fail("GET /api/v1/pods?watch", 403, "cannot watch", times=10**6)
        double.end_watches()
        double.put(PODS, pod("c", image="2"))
        await seen.until(lambda: "there c" in seen.told)
        double.remove(PODS, "b", "shop")
        await seen.until(lambda: "gone b" in seen.told)
        assert seen.take() == ["listed a b c", "there c", "gone b"]


async def test_a_server_whose_every_list_is_gone_is_not_asked_without_end(autojump_clock: MockClock) -> None:
    double = double_with("a")
    double.fail("GET /api/v1/pods", 410, reason="Expired", times=10**6)
    async with following(double):
        await trio.sleep(60)
        assert asked(double, "/api/v1/pods") < 40


async def test_without_permission_to_watch_objects_are_listed_again_and_again(autojump_clock: MockClock) -> None:
    double = double_with("a")
    double.fail("GET /api/v1/pods?watch", 403, "cannot watch", times=10**6)
    async with following(double) as seen:
        await seen.until(lambda: seen.losses)
        assert seen.take() == ["listed a"]
        double.put(PODS, pod("b"))
        double.remove(PODS, "a", "shop")
        await seen.until(lambda: len(seen.told) == 2)
        assert seen.take() == ["there b", "gone a"]
        assert trio.current_time() < 60
        assert seen.losses[-1].endswith("is refused: 403 cannot watch")


async def test_a_kind_that_is_not_there_is_no_error_and_found_when_it_comes(autojump_clock: MockClock) -> None:
    double = double_with()
    async with following(double, ROUTES) as seen:
        await seen.until(lambda: seen.told)
        await trio.sleep(300)
        assert (seen.take(), seen.version, seen.losses, seen.is_lost) == (["listed "], "", [], False)
        assert asked(double, "/apis/networking.istio.io") < 30
        double.serve(ROUTES)
        double.put(ROUTES, {"metadata": {"name": "r"}, "spec": {}})
        began = trio.current_time()
        seen.client.discovery.renew()
        await seen.until(lambda: seen.told)
        assert (seen.take(), seen.version) == (["listed r"], "v1")
        assert trio.current_time() == began
        await double.until_watched("virtualservices")
        double.withdraw(ROUTES)
        await seen.until(lambda: len(seen.told) == 2)
        assert (seen.take(), seen.version, seen.losses) == (["gone r", "listed "], "", [])


async def test_news_that_come_before_the_server_has_the_kind_are_not_the_last_chance(autojump_clock: MockClock) -> None:
    double = double_with()
    async with following(double, ROUTES) as seen:
        await seen.until(lambda: seen.told)
        seen.client.discovery.renew()
        await trio.sleep(1.5)
        double.serve(ROUTES)
        await seen.until(lambda: seen.version)
        assert trio.current_time() < 10


async def test_objects_stay_while_a_server_that_starts_does_not_know_its_kinds_yet(autojump_clock: MockClock) -> None:
    double = double_with(resources=(ROUTES,))
    double.put(ROUTES, {"metadata": {"name": "r"}, "spec": {}})
    async with following(double, ROUTES) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("virtualservices")
        double.resources.clear()
        double.cut_watches()
        await trio.sleep(reflector.DOUBT_SECONDS - 2)
        assert (seen.take(), seen.is_lost) == (["listed r"], True)
        double.serve(ROUTES)
        await seen.until(lambda: not seen.is_lost)
        assert seen.take() == []
        double.resources.clear()
        double.cut_watches()
        await seen.until(lambda: seen.told)
        assert (seen.take(), seen.version) == (["listed "], "")


async def test_the_newest_version_that_has_the_kind_is_read(autojump_clock: MockClock) -> None:
    old = ApiResource(ROUTES.group, ("v1alpha3",), ROUTES.plural, ROUTES.kind)
    other = ApiResource(ROUTES.group, ("v1",), "others", "Other")
    async with following(double_with(resources=(old, other)), ROUTES) as seen:
        await seen.until(lambda: seen.told)
        assert seen.version == "v1alpha3", "the group has v1, but not of this kind"


@pytest.mark.parametrize(
    "text",
    [
        b"garbage\n", b"\xff\xfe\n", b"7\n", b'{"type":"ADDED"}\n', b'{"type":"ADDED","object":7}\n',
        b"[" * 9999 + b"\n",
        b'{"type":"ADDED","object":{"metadata":{}}}\n', b'{"type":"ADDED","object":{"metadata":{"name":7}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}\n', b'{"type":"ADDED","object":{"metadata":null}}\n',
        b'{"type":"ERROR","object":{"message":"odd"}}\n', b'{"type":"ODD","object":{}}\n', b"x" * 3000,
    ],
)  # fmt: skip
async def test_garbage_costs_nothing_but_the_watch(
    text: bytes, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(decoding.LineBuffer.__init__, "__defaults__", (2000,))
    double = double_with("a")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        await double.until_watched("pods")
        double.write_to_watches(text)
        double.put(PODS, pod("b"))
        await seen.until(lambda: "there b" in seen.told)
        assert (seen.take(), len(seen.losses), seen.is_lost) == (["listed a", "there b"], 1, False)


async def test_watches_that_end_at_once_or_are_gone_at_once_are_not_asked_for_without_end(
    autojump_clock: MockClock,
) -> None:
    double = double_with("a", streaming_lists="invalid")
    async with following(double) as seen:
        await seen.until(lambda: seen.version)
        for _ in range(600):
            double.end_watches()
            double.gone_watches()
            await trio.sleep(0.1)
        assert asked(double, "watch=true") < 40
        assert asked(double, "limit=500") < 40
        await double.until_watched("pods")
        double.put(PODS, pod("b"))
        await seen.until(lambda: "there b" in seen.told)
        assert seen.take() == ["listed a", "there b"]


async def test_selections_and_what_is_made_of_objects(autojump_clock: MockClock) -> None:
    double = double_with()
    for number, app in enumerate("xyx"):
        double.put(PODS, pod(f"p{number}", app=app))
    async with following(double, label_selector="app=x", metadata_only=True) as seen:
        await seen.until(lambda: seen.version)
        assert seen.take() == ["listed p0 p2"]
        assert set(seen.objects["shop/p0"]) == {"apiVersion", "kind", "metadata"}
        assert "managedFields" not in seen.objects["shop/p0"]["metadata"]
        await double.until_watched("pods")
        double.put(PODS, pod("p0", app="y"))
        double.put(PODS, pod("p1", app="x"))
        await seen.until(lambda: len(seen.told) == 2)
        assert seen.take() == ["gone p0", "there p1"], "it is none of the selection any more"

    def small(found: object) -> object:
        assert isinstance(found, dict)
        return {
            "metadata": {part: found["metadata"][part] for part in ("name", "namespace")},
            "app": found["spec"]["app"],
        }

    async with following(double, namespace="shop", field_selector="metadata.name!=p2", transform=small) as seen:
        await seen.until(lambda: seen.version)
        assert {key: found["app"] for key, found in seen.objects.items()} == {"shop/p0": "y", "shop/p1": "x"}
        assert asked(double, "/api/v1/namespaces/shop/pods?fieldSelector=metadata.name%21%3Dp2") == 1


async def test_large_lists_and_bursts_let_others_run(autojump_clock: MockClock) -> None:
    double = double_with()
    for number in range(300):
        double.put(PODS, pod(f"p{number}", data="x" * 1000))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    for streaming in ("yes", "invalid"):
        double.streaming_lists = streaming
        turns = 0
        async with trio.open_nursery() as nursery, following(double) as seen:
            nursery.start_soon(others)
            await seen.until(lambda: seen.version)
            assert turns > 300 * 1000 / reflector.TURN_BYTES
            nursery.cancel_scope.cancel()
