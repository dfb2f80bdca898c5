"""Traces of changes: a trace for each revision, whose spans are bounded, sent to a receiver that may be away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Container
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from click.testing import CliRunner
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.rpc.status_pb2 import Status

from mesh_pilot.cli.discovery.command import command
from mesh_pilot.model.resource import CLUSTER, ENDPOINT
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.tracing.otlp import TraceExporter, encoded
from mesh_pilot.ops.tracing.settings import TraceSettings
from mesh_pilot.ops.tracing.traces import (
    FIRST_PUSHES,
    MAX_OPEN,
    MAX_SECONDS,
    QUIET_SECONDS,
    REFUSED_PUSHES,
    SLOWEST_PUSHES,
    TEXT_SHOWN,
    RevisionTraces,
    Span,
)
from mesh_pilot.world.intake import ItemChange
from mesh_pilot.world.reducer import Published
from mesh_pilot.world.world import Revision
from mesh_pilot.xds.ads.status import StatusRegistry
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
KEY = ("config", "VirtualService", "shop", "reviews")


def revision(number: int, at: float = 10.0) -> Published:
    changes = [ItemChange("files", KEY, None, None, "deleted")]
    return Published(Revision(number, frozenset([KEY]), 1), at - 0.5, at, changes, (), 0.1)


def traces(**more: Any) -> RevisionTraces:
    return RevisionTraces(TraceSettings("http://localhost:4318", b"seed"), **more)


def push(found: RevisionTraces, client: int, began: float, seconds: float, error: str | None = None) -> None:
    found.pushing(7, client, f"web-{client}.shop", CLUSTER, resources=3, size=100, began=began)
    found.written(client, CLUSTER, began + seconds / 2)
    found.answered(client, CLUSTER, began + seconds, error)


NOBODY: Container[int] = ()
EVERYBODY: Container[int] = range(10**6)


def test_a_revision_has_a_root_and_a_span_for_each_part() -> None:
    found = traces()
    found.published(revision(7))
    push(found, 1, 10.2, 0.5)
    push(found, 2, 10.2, 0.8, "no")
    found.pushing(7, 3, "web-3.shop", ENDPOINT, resources=1, size=10, began=10.3)
    found.left(3, 10.4)
    assert found.finished(10 + QUIET_SECONDS / 2, NOBODY) == []
    assert found.finished(11.5, EVERYBODY) == []
    root, *others = found.finished(11.5, NOBODY)
    assert found.is_idle
    assert (root.name, root.parent_id, root.began, root.ended) == ("revision 7", "", 9.5, 11.0)
    assert root.attributes["mesh_pilot.objects"] == ("config/VirtualService/shop/reviews",)
    assert root.attributes["mesh_pilot.sources"] == ("files",)
    assert root.attributes["mesh_pilot.causes"] == ("deleted",)
    assert {span.trace_id for span in others} == {root.trace_id} == {found.trace_id(7)}
    assert {span.parent_id for span in others} == {root.span_id}
    assert [(span.name, span.began, span.error) for span in others] == [
        ("debounce", 9.5, ""),
        ("apply", 9.9, ""),
        ("push CDS", 10.2, ""),
        ("push CDS", 10.2, "no"),
        ("push EDS", 10.3, "the stream ended"),
    ]
    assert len({span.span_id for span in others}) == len(others)
    assert [span.attributes.get("mesh_pilot.answer") for span in others[2:]] == ["ACK", "NACK", "none"]


def test_the_first_the_slowest_and_some_refused_responses_are_shown_and_the_others_counted() -> None:
    found = traces()
    found.published(revision(7))
    for client in range(500):
        push(found, client, 10.0, client / 1000, "no" if client >= 400 else None)
    root, *others = found.finished(20.0, NOBODY)
    shown = [str(span.attributes["mesh_pilot.proxy"]) for span in others[2:]]
    assert len(shown) == FIRST_PUSHES + REFUSED_PUSHES + SLOWEST_PUSHES
    assert shown[0] == "web-0.shop" and "web-499.shop" in shown and "web-400.shop" in shown
    assert root.attributes["mesh_pilot.pushes"] == 500
    assert root.attributes["mesh_pilot.pushes_refused"] == 100
    assert root.attributes["mesh_pilot.pushes_not_shown"] == 500 - len(shown)


def test_traces_that_nobody_finishes_are_finished_in_time_and_number() -> None:
    found = traces()
    for number in range(1, MAX_OPEN + 11):
        found.published(revision(number))
    roots = [span for span in found.finished(10.0, NOBODY) if not span.parent_id]
    assert [span.name for span in roots] == [f"revision {number}" for number in range(1, 11)]
    assert len(found.finished(10 + MAX_SECONDS, EVERYBODY)) == 3 * MAX_OPEN
    assert found.is_idle
    push(found, 1, 80.0, 1.0)  # of a revision that is over
    assert found.lost == 0
    for number in range(1000, 1000 + 5 * MAX_OPEN):  # while nobody takes them
        found.published(revision(number))
    assert found.lost == 3 * 3 * MAX_OPEN
    assert len(found.finished(10.0, NOBODY)) == 3 * MAX_OPEN
    assert len(found.finished(10 + MAX_SECONDS, NOBODY)) == 3 * MAX_OPEN
    assert repr(found) == "<RevisionTraces 0 open, 0 pushes under way>"


def test_responses_that_nobody_answers_are_counted_and_long_reasons_are_cut() -> None:
    found = traces()
    found.published(revision(7))
    push(found, 1, 10.0, 1.0, "no" * TEXT_SHOWN)
    found.pushing(7, 2, "web-2.shop", CLUSTER, resources=3, size=100, began=10.0)
    root, *_, refused = found.finished(10 + MAX_SECONDS, EVERYBODY)
    assert (root.attributes["mesh_pilot.pushes"], root.attributes["mesh_pilot.pushes_unanswered"]) == (1, 1)
    assert len(refused.error) == TEXT_SHOWN


def test_another_worker_has_the_spans_of_its_proxies_in_the_same_trace() -> None:
    first, other = traces(), traces(leads=False)
    for found in (first, other):
        found.published(revision(7))
    push(other, 1, 10.2, 0.5)
    root, *_ = first.finished(20.0, NOBODY)
    (span,) = other.finished(20.0, NOBODY)
    assert (span.trace_id, span.parent_id) == (root.trace_id, root.span_id)


def test_hostile_names_are_cut_and_can_be_encoded() -> None:
    span = Span(trace_id="0", span_id="1", name="push CDS", began=0, ended=1, error="\ud800" * 10_000)
    (made,) = json.loads(encoded([span], 100.0, {}))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    made["status"]["message"].encode()
    assert len(made["status"]["message"]) < 10_000
    assert (made["startTimeUnixNano"], made["endTimeUnixNano"]) == ("100000000000", "101000000000")


def test_an_endpoint_that_is_none_is_refused() -> None:
    for wrong in ("localhost:4318", "grpc://localhost:4317", "http://"):
        done = CliRunner().invoke(command, ["--otel-traces", wrong])
        assert done.exit_code == 2 and "is not a URL such as http://localhost:4318" in done.output
    assert (
        TraceSettings("http://a:4318/").url == TraceSettings("http://a:4318/v1/traces").url == "http://a:4318/v1/traces"
    )


class Receiver:
    """A small OTLP receiver. While ``is_away`` it answers 503."""

    def __init__(self) -> None:
        self.port = 0
        self.is_away = True
        self.asked = 0
        self.spans: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.asked += 1
        if not self.is_away:
            assert scope["path"] == "/v1/traces" and (b"content-type", b"application/json") in scope["headers"]
            (resource,) = json.loads(body)["resourceSpans"]
            names = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
            assert names["service.name"] == {"stringValue": "mesh-pilot"}
            self.spans += resource["scopeSpans"][0]["spans"]
        await send({"type": "http.response.start", "status": 503 if self.is_away else 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
async def receiver(nursery: trio.Nursery) -> AsyncIterator[Receiver]:
    found = Receiver()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    found.port = listeners[0].socket.getsockname()[1]
    nursery.start_soon(partial(HttpServer(found).serve, listeners, trio.Event(), grace_seconds=0))
    yield found
    nursery.cancel_scope.cancel()


async def refusing_proxy(address: str, is_served: trio.Event) -> None:
    """A proxy accepts its clusters, the first and the changed ones, and refuses the next."""
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
        node = {"id": "sidecar~10.9.9.9~web-1.shop~shop.svc.cluster.local"}
        await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
        answers = 0
        while (answer := await call.recv_message()) is not None:
            answers += 1
            request = DiscoveryRequest(type_url=CLUSTER, response_nonce=answer.nonce)
            if answers == 3:
                request.error_detail.CopyFrom(Status(code=13, message="not these"))
            await call.send_message(request)
            is_served.set()


@pytest.mark.plane
async def test_a_change_is_followed_to_the_answers_of_proxies(
    tmp_path: Path, receiver: Receiver, nursery: trio.Nursery
) -> None:
    (tmp_path / "a.yaml").write_text(SERVICE)
    endpoint = TraceSettings(f"http://127.0.0.1:{receiver.port}")
    is_served = trio.Event()
    async with running_plane(tmp_path, traces=endpoint, quarantine=None) as plane:
        exporter = plane.state.traces
        assert exporter is not None
        nursery.start_soon(refusing_proxy, plane.addresses.grpc, is_served)
        await is_served.wait()
        await eventually(lambda: receiver.asked > 0)
        await eventually(lambda: exporter.statistics().lost > 0)
        receiver.is_away = False
        for name in ("ratings", "details"):
            (tmp_path / f"{name}.yaml").write_text(SERVICE.replace("reviews", name))
            await eventually(lambda name=name: name in str(receiver.spans))  # type: ignore[misc]  # a lambda's default
        trees = {span["traceId"]: [] for span in receiver.spans if "parentSpanId" not in span}
        for span in receiver.spans:
            trees[span["traceId"]].append(span)
        accepted, refused = trees.values()
        assert [span["name"] for span in accepted][1:] == ["debounce", "apply", "push CDS"]
        assert [span["name"] for span in refused][1:] == ["debounce", "apply", "push CDS"]
        root, *_, pushed = refused
        assert root["name"].startswith("revision ") and "ServiceEntry/shop/details" in str(root["attributes"])
        assert pushed["status"] == {"code": 2, "message": "not these"} and "status" not in accepted[-1]
        (sent,) = pushed["events"]
        assert sent["name"] == "sent"
        assert int(root["startTimeUnixNano"]) <= int(pushed["startTimeUnixNano"]) <= int(sent["timeUnixNano"])
        assert int(root["endTimeUnixNano"]) == int(pushed["endTimeUnixNano"])
        await eventually(lambda: exporter.statistics().exported == len(receiver.spans))
        nursery.cancel_scope.cancel()


async def test_a_receiver_that_never_ends_its_answer_or_has_no_name_of_dns_only_loses_traces(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")

    async def drip(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some(1)
            while True:
                await stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                await trio.sleep(1)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, drip, [listener])
    port = listener.socket.getsockname()[1]
    for endpoint in (f"http://127.0.0.1:{port}", "http://otel..svc:4318", f"http://{'a' * 70}:4318"):
        exporter = TraceExporter(TraceSettings(endpoint, b"seed"), StatusRegistry(), leads=True)
        nursery.start_soon(exporter.run)
        exporter.published(revision(7, trio.current_time()))
        await eventually(lambda exporter=exporter: exporter.statistics().lost > 0)  # type: ignore[misc]  # as above
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_without_a_receiver_nothing_is_observed(tmp_path: Path) -> None:
    async with running_plane(tmp_path) as plane:
        assert plane.state.traces is None and plane.state.xds.status.observer is None
