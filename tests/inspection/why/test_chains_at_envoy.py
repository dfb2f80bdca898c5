"""The filter chain that ``why`` chooses is the one that a real Envoy takes: random chains, real connections."""

from __future__ import annotations

import itertools
import json
import random
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.explain.inspection.why.chains import PLAINTEXT, TLS, ChainConnection, find_chain
from tests.support.binaries import require_binary

pytestmark = pytest.mark.envoy

LISTENERS = 12
CONNECTIONS = 400

_PREFIX = "type.googleapis.com/envoy.extensions.filters"
_NAMES = ("a.test", "*.test", "x.a.test", "*.a.test", "b.test")
_ASKED = ("a.test", "A.test", "x.a.test", "y.a.test", "b.test", "c.b.test", "test", "other.org", "")
_RANGES = (("127.0.0.1", 32), ("127.0.0.0", 24), ("127.0.0.0", 8), ("127.1.0.0", 16))
"""Without 0.0.0.0/0: next to a chain without ranges it means the same, and which of the two counts is not defined."""
_DESTINATIONS = ("127.0.0.1", "127.0.0.2", "127.0.1.1", "127.1.0.1")
_SOURCES = ("127.0.0.1", "127.0.0.9", "127.1.0.7")
_ALPN = ("h2", "http/1.1", "istio", "h2c")


def random_chain_match(chance: random.Random, port: int) -> dict[str, Any]:
    match: dict[str, Any] = {}
    if chance.random() < 0.3:
        match["destination_port"] = chance.choice((port, port, 15006))
    for field, share in (("prefix_ranges", 0.4), ("source_prefix_ranges", 0.2), ("direct_source_prefix_ranges", 0.2)):
        if chance.random() < share:
            chosen = chance.sample(_RANGES, chance.randint(1, 2))
            match[field] = [{"address_prefix": address, "prefix_len": length} for address, length in chosen]
    if chance.random() < 0.4:
        match["server_names"] = chance.sample(_NAMES, chance.randint(1, 2))
    if chance.random() < 0.4:
        match["transport_protocol"] = chance.choice((TLS, PLAINTEXT))
    if chance.random() < 0.3:
        match["application_protocols"] = chance.sample(_ALPN, chance.randint(1, 2))
    if chance.random() < 0.15:
        match["source_type"] = chance.choice(("SAME_IP_OR_LOOPBACK", "EXTERNAL"))
    return match


def criteria(match: dict[str, Any]) -> set[str]:
    """The combinations of values that a chain is for: Envoy refuses two chains for one."""
    lists = [match.get(field) or [""] for field in (
        "prefix_ranges", "source_prefix_ranges", "direct_source_prefix_ranges", "server_names", "application_protocols"
    )]  # fmt: skip
    single = [match.get(field, "") for field in ("destination_port", "transport_protocol", "source_type")]
    return {json.dumps([single, *each]) for each in itertools.product(*lists)}


def listener(chance: random.Random, name: str, port: int) -> dict[str, Any]:
    """A listener whose chains answer with their index."""
    matches: list[dict[str, Any]] = []
    taken: set[str] = set()
    for _ in range(chance.randint(2, 9)):
        match = random_chain_match(chance, port)
        if taken.isdisjoint(criteria(match)):
            taken |= criteria(match)
            matches.append(match)
    chains = [chain(str(index), match) for index, match in enumerate(matches)]
    kinds = (("tls_inspector", "TlsInspector"), ("http_inspector", "HttpInspector"))
    found: dict[str, Any] = {
        "name": name,
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
        "filter_chains": chains,
        "listener_filters": [
            {"name": kind, "typed_config": {"@type": f"{_PREFIX}.listener.{kind}.v3.{message}"}}
            for kind, message in kinds
        ],
    }
    if chance.random() < 0.4:
        found["default_filter_chain"] = chain("-1", None)
    return found


def chain(answer: str, match: dict[str, Any] | None) -> dict[str, Any]:
    config = {
        "@type": f"{_PREFIX}.network.direct_response.v3.Config",
        "response": {"inline_string": f"chain {answer};"},
    }
    filters = [{"name": "envoy.filters.network.direct_response", "typed_config": config}]
    return {"name": answer, "filters": filters, **({"filter_chain_match": match} if match is not None else {})}


@attrs.frozen
class Opened:
    """A connection."""

    destination: str
    source: str
    kind: str
    """``tls``, ``http`` or ``bytes``."""
    server_name: str = ""
    protocols: tuple[str, ...] = ()


def random_connection(chance: random.Random) -> Opened:
    kind = chance.choice(("tls", "tls", "http", "bytes"))
    is_tls = kind == "tls"
    return Opened(
        chance.choice(_DESTINATIONS),
        chance.choice(_SOURCES),
        kind,
        chance.choice(_ASKED) if is_tls else "",
        tuple(chance.sample(_ALPN[:3], chance.randint(0, 2))) if is_tls else (),
    )


async def answer_of(opened: Opened, port: int) -> str:
    """The index of the chain that takes a connection; empty if it is closed."""
    stream = await trio.open_tcp_stream(opened.destination, port, local_address=opened.source)
    async with stream:
        await stream.send_all(_first_bytes(opened))
        got = b""
        try:
            while b";" not in got and (more := await stream.receive_some()):
                got += more
        except trio.BrokenResourceError:
            pass
    return got.decode().removeprefix("chain ").partition(";")[0]


def _first_bytes(opened: Opened) -> bytes:
    if opened.kind == "http":
        return b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    if opened.kind == "bytes":
        return b"\x01\x02\x03\x04\x05 no protocol at all\n"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if opened.protocols:
        context.set_alpn_protocols(list(opened.protocols))
    outgoing = ssl.MemoryBIO()
    hello = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=opened.server_name or None)
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


def said(config: dict[str, Any], opened: Opened, port: int) -> str:
    protocols = {"tls": opened.protocols, "http": ("http/1.1",), "bytes": ()}[opened.kind]
    transport = TLS if opened.kind == "tls" else PLAINTEXT
    connection = ChainConnection(
        opened.destination, port, opened.server_name, transport, tuple(protocols), opened.source
    )
    found = find_chain(config, connection)
    return "" if found is None else str(found.index)


@pytest.mark.smoke
async def test_the_chain_that_why_chooses_is_the_one_that_envoy_takes(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")
    chance = random.Random(13)
    listeners = [listener(chance, f"on {port}", port) for port in free_ports(LISTENERS)]
    admin = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    bootstrap = {"admin": admin, "static_resources": {"listeners": listeners}}
    wrong = []
    seen: Counter[bool] = Counter()
    async with running_envoy(bootstrap, tmp_path) as envoy:
        with trio.fail_after(60):
            await envoy.wait_live()
        for _ in range(CONNECTIONS):
            config, opened = chance.choice(listeners), random_connection(chance)
            port = config["address"]["socket_address"]["port_value"]
            real = await answer_of(opened, port)
            seen[bool(real)] += 1
            if (own := said(config, opened, port)) != real:
                matches = [each.get("filter_chain_match") for each in config["filter_chains"]]
                wrong.append((matches, "default" if "default_filter_chain" in config else "", opened, real, own))
    assert wrong == []
    assert min(seen.values()) > CONNECTIONS / 10
