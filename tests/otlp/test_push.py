"""Metrics pushed at an interval: to a receiver that answers, refuses, is away, drips, or is another than it seems."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from mesh_pilot.net.otlp import push as pushing
from mesh_pilot.net.otlp.client import OtlpAnswer, OtlpClient, compressed, shown_receiver, signal_url
from mesh_pilot.net.otlp.data_points import DataPoints, SeriesSample
from mesh_pilot.net.otlp.push import Hold, MetricsPush, PushSettings
from mesh_pilot.net.rpc.tls import CertificateFiles, http_client_tls, server_tls
from tests.support.certificates import write_certificates
from tests.support.otel import OtelReceiver, receiver


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """A clock that jumps when nothing comes over the loopback any more."""
    return trio.testing.MockClock(autojump_threshold=0.05)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, over hours of the mock clock."""
    for _ in range(1000):
        if condition():
            return
        await trio.sleep(5)
    raise AssertionError("it does not come")


def request(value: float = 1.0, name: str = "up") -> bytes:
    points = DataPoints({"service.name": "web"}, 1e9)
    (body,) = [*points.family(name, "gauge"), *points.add(SeriesSample(name, {}, value)), *points.end()]
    return body


async def one(hold: Hold) -> None:
    hold(request(), 1)


@asynccontextmanager
async def pushed(
    url: str, collect: Callable[[Hold], Any] = one, *, interval: float = 10.0, share: float = 0.5, **more: Any
) -> AsyncIterator[MetricsPush]:
    """A push in the background for the length of the block."""
    made = MetricsPush(
        PushSettings(url, interval),
        collect,
        more.get("tls", http_client_tls),
        log=structlog.get_logger(scope="agent"),
        share=lambda: share,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        yield made
        nursery.cancel_scope.cancel()


def test_an_endpoint_may_have_the_path_of_its_signal() -> None:
    for url in ("http://a:4318", "http://a:4318/", "http://a:4318/v1/metrics"):
        assert PushSettings(url).url == "http://a:4318/v1/metrics"
    assert signal_url("https://a/otlp", "/v1/traces") == "https://a/otlp/v1/traces"
    assert shown_receiver("https://user:secret@a:4318/x") == "a:4318"


async def test_metrics_are_pushed_at_the_interval(clock: trio.testing.MockClock) -> None:
    async with receiver() as its, pushed(its.url) as push:
        await trio.sleep(5.1)
        assert its.asked == 1
        await trio.sleep(9)
        assert its.asked == 1
        await until(lambda: push.statistics().pushes_total == 2)
        own = push.statistics()
        assert (own.failures_total, own.points_total, own.points_rejected_total) == (0, 2, 0)
        assert own.last_success > 1e9 and own.last_failure == ""
        assert list(its.metrics) == ["up"]


async def test_while_the_receiver_is_away_nothing_is_kept_and_waits_grow(
    clock: trio.testing.MockClock,
) -> None:
    send, begun = trio.open_memory_channel[float](100)

    async def collect(hold: Hold) -> None:
        await send.send(trio.current_time())
        hold(request(), 1)

    async with receiver() as its, pushed(its.url, collect, share=1.0) as push:
        its.status = 503
        with structlog.testing.capture_logs() as logs:
            times = [await begun.receive() for _ in range(7)]
            assert [round(after - before) for before, after in pairwise(times)] == [20, 30, 50, 90, 170, 310]
            its.status = 200
            await until(lambda: push.statistics().pushes_total == 2)
        assert its.metrics["up"].gauge.data_points[0].as_double == 1
        assert len(its.requests) == 2
        assert push.statistics().last_failure == ""
        assert {line["event"] for line in logs} == {"metrics not pushed", "metrics are pushed again"}
        first = logs[0]
        assert (first["reason"], first["receiver"]) == ("status 503: {}", f"localhost:{its.port}")


async def test_a_receiver_that_asks_to_wait_is_left_alone(clock: trio.testing.MockClock) -> None:
    async with receiver() as its, pushed(its.url, share=0.0) as push:
        its.status, its.headers = 429, {"retry-after": "600"}
        await until(lambda: push.statistics().failures_total == 1)
        began = trio.current_time()
        await until(lambda: push.statistics().failures_total == 2)
        assert 600 <= trio.current_time() - began <= 620


async def test_what_the_receiver_leaves_out_is_counted(clock: trio.testing.MockClock) -> None:
    async def many(hold: Hold) -> None:
        hold(request(), 5)
        hold(request(), 5)

    async with receiver() as its:
        its.body = b'{"partialSuccess": {"rejectedDataPoints": "2", "errorMessage": "too old"}}'
        with structlog.testing.capture_logs() as logs:
            async with pushed(its.url, many) as push:
                await until(lambda: push.statistics().pushes_total == 1)
        assert (push.statistics().points_total, push.statistics().points_rejected_total) == (6, 4)
        (line,) = (line for line in logs if line["log_level"] == "warning")
        assert (line["event"], line["data_points"], line["reason"]) == ("metrics left out of a push", 4, "too old")


async def test_a_push_is_bounded_and_says_so(clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "MOST_BYTES", len(compressed(request())) + 1)

    async def many(hold: Hold) -> None:
        for _ in range(5):
            hold(request(), 1)

    async with receiver() as its, pushed(its.url, many) as push:
        await until(lambda: push.statistics().pushes_total == 1)
        assert its.asked == 2
        assert (push.statistics().points_total, push.statistics().points_rejected_total) == (2, 3)


async def test_metrics_that_cannot_be_collected_in_time_are_a_failed_push(
    clock: trio.testing.MockClock,
) -> None:
    async def never(hold: Hold) -> None:
        await trio.sleep_forever()

    async with receiver() as its, pushed(its.url, never) as push:
        await until(lambda: push.statistics().failures_total == 1)
        assert push.statistics().last_failure == "the metrics were not collected in time"
        assert its.asked == 0


ANSWERS = {
    "drips": b"HTTP/1.1 100 Continue\r\n\r\n",
    "no-http": b"SSH-2.0-OpenSSH\r\n",
    "endless": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b"{" * 100_000,
}


@pytest.mark.parametrize("kind", [*ANSWERS, "hangs-up"])
async def test_a_receiver_that_is_none_costs_ten_seconds(
    kind: str, clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some(1)
            while kind in ANSWERS:
                await stream.send_all(ANSWERS[kind])
                await trio.sleep(1)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    began = trio.current_time()
    async with OtlpClient(PushSettings(url).url) as client:
        answer = await client.post(request())
    assert (answer == OtlpAnswer()) is (kind == "endless")  # its success was said; the rest is not read
    assert trio.current_time() - began < 11
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, b'{"code": 3, "message": "bad\\nrequest"}', "status 400: bad request"),
        (404, b"404 page not found\n", "status 404: 404 page not found"),
        (500, b"\x00\x01", "status 500"),
        (301, b"", "status 301, a redirect, which is not followed"),
    ],
)
async def test_a_refusal_is_told_in_the_receivers_words(status: int, body: bytes, reason: str) -> None:
    async with receiver() as its:
        its.status, its.body, its.headers = status, body, {"location": "http://127.0.0.1:1/"}
        async with OtlpClient(PushSettings(its.url).url) as client:
            assert (await client.post(request())).reason == reason


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"\xff", b'{"partialSuccess": 1}', b'{"partialSuccess": {"rejectedDataPoints": "x"}}', b"[" * 60_000],
)
async def test_an_answer_that_says_nothing_is_a_success(body: bytes) -> None:
    async with receiver() as its:
        its.body = body
        async with OtlpClient(PushSettings(its.url).url) as client:
            assert await client.post(compressed(request()), is_gzip=True) == OtlpAnswer()
        assert list(its.metrics) == ["up"]


@pytest.mark.parametrize("url", ["http://otel..svc:4318", f"http://{'a' * 70}:4318", "http://127.0.0.1:1"])
async def test_a_name_that_dns_cannot_have_and_a_closed_port_are_failures(url: str) -> None:
    async with OtlpClient(url) as client:
        assert (await client.post(request())).reason


async def test_https_with_roots_and_a_certificate_of_ours_whose_files_may_change(
    tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    for name in ("its", "other"):
        (tmp_path / name).mkdir()
    its_files = write_certificates(tmp_path / "its", "server")
    own = write_certificates(tmp_path / "its", "agent", dns=("agent.test",))
    other = write_certificates(tmp_path / "other", "server")
    roots = tmp_path / "roots.pem"
    tls = server_tls(CertificateFiles(certificate=its_files.certificate, key=its_files.key, trusted=its_files.ca))
    files = CertificateFiles(certificate=own.certificate, key=own.key, trusted=roots)

    async with receiver(tls) as its, pushed(its.url, tls=lambda: http_client_tls(files)) as push:
        await until(lambda: push.statistics().failures_total == 1)
        assert "No such file" in push.statistics().last_failure or "roots.pem" in push.statistics().last_failure
        roots.write_bytes(other.ca.read_bytes())
        await until(lambda: push.statistics().failures_total == 2)
        assert "certificate verify failed" in push.statistics().last_failure
        roots.write_bytes(its_files.ca.read_bytes())
        await until(lambda: push.statistics().pushes_total == 1)
        assert "agent.test" in its.names[-1]


def test_a_representation_tells_the_state() -> None:
    push = MetricsPush(PushSettings("http://u:p@a:4318"), one, http_client_tls, log=structlog.get_logger(scope="agent"))
    assert repr(push) == "<MetricsPush to a:4318, 0 pushes>"
    assert isinstance(OtelReceiver().url, str)
