"""Rows of the API: each with its state and the reason, and searched, filtered and sorted where the data is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import attrs
import httpx
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.signers.signing import SignedPeriods, SigningRequest
from mesh_pilot.identity.trust.validity import ValidityPeriod
from mesh_pilot.model.proxy import parse_proxy
from mesh_pilot.model.spiffe import parse_identity
from mesh_pilot.ops.api.paging import AssessedEntry, Paging, piece_of
from mesh_pilot.ops.api.proxies import workers_rows
from mesh_pilot.ops.api.route import ApiError
from mesh_pilot.ops.causes import proxies as proxies_module
from mesh_pilot.ops.causes.plane import NextCertificate, ending_certificates
from mesh_pilot.xds.ads.known_proxies import MAX_GONE
from mesh_pilot.xds.ads.messages import Variant
from mesh_pilot.xds.ads.status import StatusRegistry
from tests.support.envoy import eventually
from tests.support.picky import ODD, proxy
from tests.support.planes import SERVICE, running_plane

PROXY = parse_proxy("sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local", {})

ROWS: list[Any] = [
    {"proxy": "web-1.shop", "namespace": "shop", "state": "in sync", "severity": "ok", "gone": False, "n": 3},
    {"proxy": "web-2.shop", "namespace": "shop", "state": "refused", "severity": "error", "gone": False, "n": None},
    {"proxy": "edge.ops", "namespace": "ops", "state": "warming", "severity": "warning", "gone": False, "n": 11},
    {"proxy": "old.ops", "namespace": "ops", "state": "gone", "severity": "warning", "gone": True, "n": 1},
]


def whole(query: dict[str, str]) -> Any:
    return piece_of(ROWS, "proxy", query, None)


def piece(**query: str) -> Any:
    paging = Paging(int(query.pop("limit", "100")), offset=int(query.pop("offset", "0")))
    return piece_of(ROWS, "proxy", query, paging)


def names(found: Any) -> list[str]:
    return [row["proxy"] for row in found["items"]]


def test_rows_are_searched_by_all_words_and_filtered_by_namespace_and_state() -> None:
    assert names(piece()) == ["edge.ops", "web-1.shop", "web-2.shop"], "who has left is not asked for"
    assert piece()["counts"] == {"in sync": 1, "refused": 1, "warming": 1}
    assert names(piece(q="SHOP web")) == ["web-1.shop", "web-2.shop"]
    assert names(piece(namespace="ops")) == ["edge.ops"]
    assert names(piece(state="refused,warming")) == ["edge.ops", "web-2.shop"]
    assert names(piece(state="ill")) == ["edge.ops", "old.ops", "web-2.shop"]
    assert names(piece(state="gone")) == ["old.ops"]
    assert piece(state="refused")["counts"]["in sync"] == 1, "each filter says what the others would give"


def test_rows_are_sorted_by_any_member_and_those_without_it_come_last() -> None:
    assert names(piece(sort="severity")) == ["web-2.shop", "edge.ops", "web-1.shop"]
    assert names(piece(sort="n")) == ["web-1.shop", "edge.ops", "web-2.shop"]
    assert names(piece(sort="-n")) == ["edge.ops", "web-1.shop", "web-2.shop"]
    with pytest.raises(ApiError, match=r"sort=nothing: there are proxy, namespace"):
        piece(sort="nothing")


def test_past_the_end_is_the_last_piece() -> None:
    found = piece(limit="2", offset="500")
    assert (names(found), found["offset"], found["total"]) == (["web-2.shop"], 2, 3)
    assert piece(q="nobody", offset="500") == {"items": [], "total": 0, "offset": 0, "counts": {}}
    entries = [(f"{number}", number) for number in range(5)]
    assert Paging(2, offset=9).piece(entries, lambda entry: entry).items == [4]


def test_pieces_have_neither_gaps_nor_repetitions() -> None:
    entries = [AssessedEntry(f"{number:03}", number, (), "", "", "ok") for number in range(25)]
    seen: list[int] = []
    after: str | None = ""
    while after is not None:
        found = Paging(4, after).assessed(entries, {}, lambda entry: entry)
        seen += found.items
        after = found.go_on
    assert seen == [*range(25)]


def test_a_search_needs_no_limit() -> None:
    assert [row["proxy"] for row in whole({"q": "edge"})] == ["edge.ops"]
    assert len(whole({})) == 3
    assert len(whole({"gone": "true"})) == 4


def test_a_proxy_that_went_from_one_worker_to_another_has_not_left() -> None:
    here = {"proxy": "a", "proxy_id": "1", "gone": False, "last_seen": None}
    left = {"proxy": "a", "proxy_id": "1", "gone": True, "last_seen": "2026-01-01"}
    twice = {"proxy": "b", "proxy_id": "2", "gone": True, "last_seen": "2026-01-01"}
    later = {**twice, "last_seen": "2026-01-02"}
    assert workers_rows({1: [left, later], 2: [here, twice]}) == [here, later]


def test_proxies_that_have_left_are_remembered_until_they_are_back_and_not_without_end() -> None:
    registry = StatusRegistry()
    first = registry.connect(Variant.SOTW, "10.0.0.1:1")
    first.connected(PROXY)
    second = registry.connect(Variant.SOTW, "10.0.0.1:2")
    second.connected(PROXY)
    registry.disconnect(first)
    assert registry.known.gone == {}, "it has another stream"
    registry.disconnect(second)
    assert [each.proxy for each in registry.known.gone.values()] == [PROXY]
    again = registry.connect(Variant.SOTW, "10.0.0.1:3")
    again.connected(PROXY)
    assert registry.known.gone == {}
    for number in range(MAX_GONE + 5):
        connection = registry.connect(Variant.SOTW, "10.0.0.1:3")
        connection.connected(attrs.evolve(PROXY, id=f"{number}"))
        registry.disconnect(connection)
    assert len(registry.known.gone) == MAX_GONE and "0" not in registry.known.gone


def test_the_life_of_a_certificate_is_known_by_identity_and_address() -> None:
    identity = parse_identity("spiffe://cluster.local/ns/shop/sa/web")
    found = SignedPeriods()
    unread: Any = None  # nobody signs here
    request = SigningRequest(unread, timedelta(hours=1), identity)

    @attrs.frozen
    class Leaf:
        not_valid_after_utc: datetime
        not_valid_before_utc: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def leaf(day: int) -> Any:
        return Leaf(datetime(2026, 1, day, tzinfo=UTC))  # all of a certificate that is read

    found.note(request, leaf(2))
    found.note(attrs.evolve(request, peer="10.0.0.1:4711"), leaf(3))
    found.note(attrs.evolve(request, identity=None), leaf(9))
    ends = {host: found.of(str(identity), host) for host in ("10.0.0.1", "10.0.0.2")}
    assert [each.ends.day for each in ends.values() if each is not None] == [3, 2]
    assert found.of("spiffe://cluster.local/ns/shop/sa/other", "10.0.0.1") is None


@attrs.frozen
class Api:
    """A control plane and a client of its API."""

    plane: ControlPlane
    client: httpx.AsyncClient
    folder: Path

    async def get(self, path: str, **query: Any) -> Any:
        reply = await self.client.get(f"http://{self.plane.addresses.http}/api/v1{path}", params=query or None)
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    (tmp_path / "reviews.yaml").write_text(SERVICE)
    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        yield Api(plane, client, tmp_path)


@pytest.mark.plane
async def test_a_withheld_object_is_so_in_every_list(api: Api, nursery: trio.Nursery) -> None:
    await nursery.start(partial(proxy, api.plane.addresses.grpc))
    (api.folder / "odd.yaml").write_text(ODD)

    async def is_withheld() -> bool:
        rows = await api.get("/proxies", state="withheld")
        return [row["proxy"] for row in rows] == ["web-1.shop"]

    await eventually(is_withheld)
    (row,) = await api.get("/proxies")
    assert (row["severity"], row["why"]) == ("warning", "it is not given ServiceEntry/shop/odd as written")
    objects = await api.get("/objects", state="ill")
    assert [(each["name"], each["state"], each["severity"]) for each in objects["items"]] == [
        ("odd", "withheld", "error")
    ]
    assert objects["counts"] == {"withheld": 1, "in force": 1}
    (cause,) = (await api.get("/now"))["causes"]
    assert (cause["subject"]["name"], cause["state"]) == ("odd", "withheld")
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_services_without_endpoints_are_found_among_all(api: Api) -> None:
    for number in range(3):
        text = SERVICE.replace("name: reviews", f"name: s-{number}").replace("reviews.test", f"s-{number}.test")
        (api.folder / f"{number}.yaml").write_text(text.partition("  endpoints:")[0] if number == 1 else text)

    async def are_there() -> bool:
        return bool((await api.get("/services"))["total"] == 4)

    await eventually(are_there)
    found = await api.get("/services", state="down,empty")
    assert [each["host"] for each in found["items"]] == ["s-1.test"]
    assert found["counts"] == {"healthy": 3, "empty": 1}
    assert (await api.get("/services", sort="severity", limit=1))["items"][0]["host"] == "s-1.test"
    one = await api.get("/services/shop/s-1.test")
    assert (one["state"], one["severity"]) == ("empty", "warning")
    (files,) = [each for each in await api.get("/sources") if each["name"] == "files"]
    assert (files["state"], files["severity"], files["activity"]) == ("synced", "ok", "synced")


@pytest.mark.plane
async def test_a_proxy_that_has_left_keeps_its_page_also_with_a_slash_in_its_name(
    api: Api, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies_module, "GRACE_SECONDS", 0.0)
    scope = await nursery.start(partial(proxy, api.plane.addresses.grpc, name="a/b"))
    path = f"/proxies/{quote('a/b.shop', safe='')}"

    async def is_in_sync() -> bool:
        (row,) = (await api.get(path))["streams"] if await api.get("/proxies") else [{}]
        return bool(row.get("state") == "in sync")

    await eventually(is_in_sync)
    assert await api.get(f"{path}/config_dump")
    (row,) = (await api.get(path))["streams"]
    assert (row["gone"], row["last_seen"], row["namespace"], row["address"]) == (False, None, "shop", "127.0.0.1")
    scope.cancel()
    await eventually(lambda: not [*api.plane.state.xds.status.proxies()])
    assert await api.get("/proxies") == []
    (row,) = await api.get("/proxies", state="gone")
    assert (row["proxy"], row["gone"], row["revision"], row["severity"]) == ("a/b.shop", True, 1, "warning")
    assert (await api.get(path))["streams"] == [row]
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_things_are_found_by_words_of_their_names_hosts_addresses_and_labels(
    api: Api, nursery: trio.Nursery
) -> None:
    await nursery.start(partial(proxy, api.plane.addresses.grpc, ip="10.9.9.9"))
    await eventually(lambda: bool([*api.plane.state.xds.status.proxies()]))
    for words, where, name, match in (
        ("TEST reviews", "services", ["shop", "reviews.test"], ""),
        ("10.0.0.1", "services", ["shop", "reviews.test"], "address 10.0.0.1"),
        ("version=v1 shop", "services", ["shop", "reviews.test"], "label version=v1"),
        ("serviceentry reviews.test", "objects", ["ServiceEntry", "shop", "reviews"], "host reviews.test"),
        ("10.9.9.9 web", "proxies", ["web-1.shop"], "address 10.9.9.9"),
    ):
        found = (await api.get("/search", q=words))[where]
        assert (found["items"], found["matches"], found["total"]) == ([name], [match], 1), words
    found = await api.get("/search", q="reviews nowhere")
    assert [found[where]["total"] for where in ("services", "objects", "proxies")] == [0, 0, 0]
    nursery.cancel_scope.cancel()


def _seen(name: str, end: datetime | None) -> Any:
    """A proxy that has shown a certificate with this end."""
    shown = SimpleNamespace(certificate_end=end)
    return SimpleNamespace(proxy=attrs.evolve(PROXY, name=name, identity=f"spiffe://{name}"), connection=shown)


def test_the_certificate_that_ends_next_is_known_and_one_that_was_not_replaced_is_a_cause() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    hour = timedelta(hours=1)
    lives = {
        "spiffe://late.shop": ValidityPeriod(now - 23 * hour, now + hour),
        "spiffe://fresh.shop": ValidityPeriod(now - hour, now + 2 * hour),
    }
    periods = SimpleNamespace(of=lambda identity, host: lives.get(identity))
    callers = SimpleNamespace(periods=periods, validity=SimpleNamespace(now=lambda: now))
    state: Any = SimpleNamespace(callers=callers)
    fresh, late = _seen("fresh.shop", None), _seen("late.shop", now + hour / 2)
    shown, over = _seen("shown.shop", now + 5 * hour), _seen("over.shop", now - hour)
    assert ending_certificates(state, [_seen("none.shop", None)]) == (None, [])
    assert ending_certificates(state, [fresh, shown]) == (NextCertificate("fresh.shop", now + 2 * hour), [])
    first, (cause,) = ending_certificates(state, [fresh, late])
    assert first == NextCertificate("late.shop", now + hour), "the later of what was signed and what was shown"
    assert (cause.assessment.severity, cause.touches.names) == ("warning", ["late.shop"])
    first, (cause,) = ending_certificates(state, [fresh, late, over])
    assert (cause.assessment.severity, cause.subject.name, cause.touches.count) == ("error", "over.shop", 2)
