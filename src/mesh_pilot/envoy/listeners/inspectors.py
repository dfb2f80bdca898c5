"""Listener filters: they inspect a connection before its filter chain is chosen.

The TLS inspector detects server name and ALPN, the HTTP inspector plaintext HTTP. Both wait for the client's first
bytes, so each is disabled on ports where no chain needs it: a server may be the first to send there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta

import attrs
from envoy.config.listener.v3.listener_components_pb2 import ListenerFilter, ListenerFilterChainMatchPredicate
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.listener.http_inspector.v3 import http_inspector_pb2
from envoy.extensions.filters.listener.original_dst.v3 import original_dst_pb2
from envoy.extensions.filters.listener.original_src.v3 import original_src_pb2
from envoy.extensions.filters.listener.proxy_protocol.v3 import proxy_protocol_pb2
from envoy.extensions.filters.listener.tls_inspector.v3 import tls_inspector_pb2
from envoy.type.v3 import range_pb2
from google.protobuf import message

from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, duration, uint32
from mesh_pilot.envoy.listeners.filter_chains import PLAINTEXT_HTTP, TLS_TRANSPORT, EncodedChain
from mesh_pilot.world.view import View

TLS_INSPECTOR = "envoy.filters.listener.tls_inspector"
HTTP_INSPECTOR = "envoy.filters.listener.http_inspector"
ORIGINAL_DST = "envoy.filters.listener.original_dst"
PROXY_PROTOCOL = "envoy.filters.listener.proxy_protocol"
ORIGINAL_SRC = "envoy.filters.listener.original_src"

READ_BUFFER = 512
"""Bytes that the TLS inspector reads at first: enough for most ClientHellos."""

TPROXY_MARK = 1337
"""The packet mark by which the interception rules let the proxy's own connections pass."""


@attrs.frozen
class _NeededInspectors:
    tls: bool = False
    http: bool = False


def set_detection_timeout(header: Listener, view: View, otherwise: timedelta = timedelta()) -> None:
    """Set how long inspectors wait for the client (0: without limit); the connection then continues undetected.

    ``otherwise``: the time where the mesh config has none.
    """
    _set_timeout(header, _detection_timeout(view) or otherwise)


def await_server_name(header: Listener) -> None:
    """Have the TLS inspector wait without limit: without the name the connection would go to another service."""
    _set_timeout(header, timedelta())


def _set_timeout(header: Listener, timeout: timedelta) -> None:
    header.listener_filters_timeout.CopyFrom(duration(timeout))
    header.continue_on_listener_filters_timeout = True


@derived
def _detection_timeout(view: View) -> timedelta:
    return view.mesh().protocol_detection_timeout or timedelta()


def inbound_filters(chains: Iterable[EncodedChain], *, captured: bool, tproxy: bool) -> list[ListenerFilter]:
    """The listener filters of an inbound listener; each is enabled on the ports whose chains need it.

    ``captured``: the host redirects connections to the listener, so their original destination has to be restored.
    """
    filters: list[ListenerFilter] = []
    if captured:
        filters.append(_filter(ORIGINAL_DST, original_dst_pb2.OriginalDst()))
        if tproxy:
            filters.append(_filter(ORIGINAL_SRC, original_src_pb2.OriginalSrc(mark=TPROXY_MARK)))
    needs: dict[int, _NeededInspectors] = defaultdict(_NeededInspectors)
    for item in chains:
        match = item.match
        needed = needs[match.port]
        needs[match.port] = _NeededInspectors(
            tls=needed.tls or match.transport == TLS_TRANSPORT,
            http=needed.http or any(p in PLAINTEXT_HTTP for p in match.protocols),
        )
    if any(n.tls for n in needs.values()):
        filters.append(_enabled_on(tls_inspector(), {p: n.tls for p, n in needs.items()}))
    if any(n.http for n in needs.values()):
        filters.append(_enabled_on(http_inspector(), {p: n.http for p, n in needs.items()}))
    return filters


def undeclared_filters(declared: Iterable[int]) -> list[ListenerFilter]:
    """The listener filters of ``virtualOutbound`` where it has to tell HTTP from the rest.

    On ``declared`` ports other listeners are handed the connections, and must not wait for the client here. The port is
    known once the original destination is restored: Envoy would do that last.
    """
    http = _enabled_on(http_inspector(), {0: True, **dict.fromkeys(declared, False)})
    return [_filter(ORIGINAL_DST, original_dst_pb2.OriginalDst()), http]


def tls_inspector() -> ListenerFilter:
    return _filter(TLS_INSPECTOR, tls_inspector_pb2.TlsInspector(initial_read_buffer_size=uint32(READ_BUFFER)))


def proxy_protocol() -> ListenerFilter:
    """Reads the client's address from the PROXY protocol header. A connection without one is closed."""
    return _filter(PROXY_PROTOCOL, proxy_protocol_pb2.ProxyProtocol())


def http_inspector() -> ListenerFilter:
    return _filter(HTTP_INSPECTOR, http_inspector_pb2.HttpInspector())


def _filter(name: str, config: message.Message) -> ListenerFilter:
    return ListenerFilter(name=name, typed_config=any_of(config))


def _enabled_on(item: ListenerFilter, needed: dict[int, bool]) -> ListenerFilter:
    """A filter that is disabled on ports that do not need it; port 0 means all ports without their own chain."""
    everywhere = needed.get(0, False)
    exceptions = sorted(p for p, n in needed.items() if p and n is not everywhere)
    if not exceptions:
        return item
    these = _on_ports(exceptions)
    item.filter_disabled.CopyFrom(these if everywhere else ListenerFilterChainMatchPredicate(not_match=these))
    return item


def _on_ports(ports: list[int]) -> ListenerFilterChainMatchPredicate:
    rules = [
        ListenerFilterChainMatchPredicate(destination_port_range=range_pb2.Int32Range(start=p, end=p + 1))
        for p in ports
    ]
    if len(rules) == 1:
        return rules[0]
    return ListenerFilterChainMatchPredicate(or_match=ListenerFilterChainMatchPredicate.MatchSet(rules=rules))
