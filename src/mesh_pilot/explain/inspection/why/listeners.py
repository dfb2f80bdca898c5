"""Listeners: which one takes a connection, and what its listener filters find out about it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mesh_pilot.explain.inspection.why.chains import PLAINTEXT, TLS, ChainConnection
from mesh_pilot.explain.inspection.why.matchers import Message
from mesh_pilot.explain.inspection.why.request import WhyRequest
from mesh_pilot.model.resource import plain_table_name

WILDCARDS = ("0.0.0.0", "::")
LOOPBACKS = ("127.0.0.1", "::1")
HTTP_PROXY = "http_proxy"

MESH_PROTOCOLS = {"http": "istio-http/1.1", "grpc": "istio-h2", "tcp": "istio"}
"""The ALPN of clients in the mesh, by scheme."""


@attrs.frozen
class ListenerFacts:
    """A listener's address, without the rest of it."""

    name: str
    address: str
    port: int
    direction: str = ""
    """``INBOUND`` or ``OUTBOUND``; empty at gateways."""
    captures: bool = False
    """True if it takes redirected connections and hands them on (``use_original_dst``)."""
    binds: bool = True
    is_http_proxy: bool = False
    """True for the port at which applications use the proxy as an explicit HTTP proxy."""
    is_udp: bool = False


@attrs.frozen
class ChosenListener:
    """The listener that takes a connection, and why."""

    facts: ListenerFacts
    reason: str
    guessed: str = ""
    """The assumption that was made, where the dump does not say enough."""
    captured_by: str = ""
    """The listener that took the redirected connection first."""


def listener_facts(listener: Mapping[str, Any]) -> ListenerFacts:
    """The facts of a listener as JSON."""
    socket = listener.get("address", {}).get("socket_address", {})
    return ListenerFacts(
        name=str(listener.get("name", "")),
        address=str(socket.get("address", "")),
        port=int(socket.get("port_value", 0)),
        direction=str(listener.get("traffic_direction", "")),
        captures=listener.get("use_original_dst") is True,
        binds=listener.get("bind_to_port", True) is not False,
        is_http_proxy=any(
            plain_table_name(_table_of(chain)) == HTTP_PROXY for chain in listener.get("filter_chains", ())
        ),
        is_udp=socket.get("protocol") == "UDP",
    )


def _table_of(chain: Message) -> str:
    configs = (each.get("typed_config", {}) for each in chain.get("filters", ()))
    return plain_table_name(next((str(c["rds"].get("route_config_name", "")) for c in configs if "rds" in c), ""))


def find_listener(
    listeners: Iterable[ListenerFacts], request: WhyRequest, *, is_sure: bool = False
) -> ChosenListener | None:
    """The listener for a request; None if the proxy does not take the connection at all.

    ``is_sure``: the client connects to the request's address. Otherwise, without redirection, it may as well use the
    proxy's loopback address.
    """
    every = [facts for facts in listeners if facts.is_udp == (request.scheme == "udp")]
    if request.scheme == "udp":
        return _at_gateway(every, request)
    direction = "INBOUND" if request.inbound else "OUTBOUND"
    if not request.inbound and not any(facts.direction == "OUTBOUND" for facts in every):
        return _at_gateway(every, request)
    own = [facts for facts in every if facts.direction == direction]
    capture = next((facts for facts in own if facts.binds and _captures(facts, request)), None)
    return _captured(own, capture, request) if capture is not None else _bound(own, request, is_sure)


def _captures(facts: ListenerFacts, request: WhyRequest) -> bool:
    return facts.captures or (request.inbound and facts.name == "virtualInbound")


def _captured(listeners: list[ListenerFacts], capture: ListenerFacts, request: WhyRequest) -> ChosenListener:
    # use_original_dst: Envoy hands the connection to the listener of the original address, else to that of the
    # wildcard and the port, and keeps it itself if there is neither.
    where = f"{request.address or request.host}:{request.port}"
    if request.inbound:
        if own := next((f for f in listeners if f is not capture and f.binds and f.port == request.port), None):
            return ChosenListener(own, f"port {request.port} has its own listener")
        return ChosenListener(capture, f"it takes redirected connections, here to port {request.port}")
    others = [facts for facts in listeners if facts is not capture and facts.port == request.port]
    exact = next((facts for facts in others if request.address and facts.address == request.address), None)
    if exact is not None:
        return ChosenListener(exact, f"the connection goes to {where}", captured_by=capture.name)
    wildcard = next((facts for facts in others if _is_wildcard(facts, request.address)), None)
    if wildcard is not None:
        reason = f"no listener is for the address alone, and this one is for port {request.port} of every address"
        return ChosenListener(wildcard, reason, captured_by=capture.name)
    return ChosenListener(capture, f"no listener is for {where}")


def _is_wildcard(facts: ListenerFacts, address: str) -> bool:
    if facts.address not in WILDCARDS:
        return False
    # The wildcard of IPv6 also takes IPv4 where it is "compatible"; that of IPv4 takes no IPv6.
    return not address or facts.address == "::" or ipaddress.ip_address(address).version == 4


def _bound(listeners: list[ListenerFacts], request: WhyRequest, is_sure: bool) -> ChosenListener | None:
    """Without redirection the application connects to the proxy's ports itself."""
    # As the kernel chooses a socket: the exact address before a wildcard. A loopback address is taken only if the
    # client did not name another: applications on the machine mean it when they name none.
    at_port = [facts for facts in listeners if facts.binds and facts.port == request.port]
    for wanted in ((request.address,), WILDCARDS, () if is_sure else LOOPBACKS):
        found = next((facts for facts in at_port if facts.address in wanted and facts.address), None)
        if found is not None:
            return ChosenListener(found, f"the proxy listens there: {found.address}:{found.port}")
    if len(at_port) == 1 and not request.address:
        found = at_port[0]
        return ChosenListener(found, "the only listener of this port", f"the client connects to {found.address}")
    proxy = next((facts for facts in listeners if facts.binds and facts.is_http_proxy), None)
    if proxy is not None and request.is_http:
        guess = f"the client uses the proxy at {proxy.address}:{proxy.port} as its HTTP proxy"
        return ChosenListener(proxy, f"no listener is for port {request.port}", guess)
    return None


def _at_gateway(listeners: list[ListenerFacts], request: WhyRequest) -> ChosenListener | None:
    at_port = [facts for facts in listeners if facts.binds and facts.port == request.port]
    for wanted in ((request.address,), WILDCARDS, tuple(facts.address for facts in at_port)):
        found = next((facts for facts in at_port if facts.address in wanted), None)
        if found is not None:
            return ChosenListener(found, f"the gateway listens there: {found.address}:{found.port}")
    return None


def chain_connection(listener: Message, request: WhyRequest) -> ChainConnection:
    """A connection as the filter chains of a listener see it: as far as its listener filters look."""
    has_tls = _inspects(listener, "tls_inspector", request.port)
    has_http = _inspects(listener, "http_inspector", request.port)
    mesh = request.inbound and request.mtls
    server_name, transport = "", PLAINTEXT
    protocols: tuple[str, ...] = ()
    if has_tls and (request.is_tls or mesh):
        transport = TLS
        if mesh and not request.is_tls:
            protocols = tuple(dict.fromkeys((MESH_PROTOCOLS.get(request.scheme, "istio"), "istio")))
            server_name = request.sni
        else:
            protocols = ("h2", "http/1.1") if request.is_http else ()
            server_name = request.server_name
    elif has_http and request.is_http and not request.is_tls:
        protocols = ("h2c",) if request.scheme == "grpc" else ("http/1.1",)
    return ChainConnection(
        address=request.address,
        port=request.port,
        server_name=server_name,
        transport=transport,
        protocols=protocols,
        source=request.source,
    )


def _inspects(listener: Message, kind: str, port: int) -> bool:
    """True if a listener filter of this kind looks at connections to a port."""
    for each in listener.get("listener_filters", ()):
        if kind in f"{each.get('name', '')} {each.get('typed_config', {}).get('@type', '')}":
            return not _matches(each.get("filter_disabled", {}), port)
    return False


def _matches(predicate: Message, port: int) -> bool:
    """A ListenerFilterChainMatchPredicate on a destination port; an empty one is false here: nothing is disabled."""
    if "destination_port_range" in predicate:
        given = predicate["destination_port_range"]
        return int(given.get("start", 0)) <= port < int(given.get("end", 0))
    if "or_match" in predicate:
        return any(_matches(rule, port) for rule in predicate["or_match"].get("rules", ()))
    if "and_match" in predicate:
        return all(_matches(rule, port) for rule in predicate["and_match"].get("rules", ()))
    if "not_match" in predicate:
        return not _matches(predicate["not_match"], port)
    return bool(predicate.get("any_match"))
