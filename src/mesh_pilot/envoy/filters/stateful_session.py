"""Sessions: a cookie or a header names the endpoint of the first request, and later ones go there while it is usable.

Routes have the settings; the filter itself has none, and does nothing without. Rules: the Gateway API's session
persistence (GEP-1619); Envoy's stateful session filter.
"""

from __future__ import annotations

import zlib

from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.extensions.filters.http.stateful_session.v3 import stateful_session_pb2
from envoy.extensions.http.stateful_session.cookie.v3 import cookie_pb2
from envoy.extensions.http.stateful_session.header.v3 import header_pb2
from google.protobuf import any_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import any_of, duration, regex
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.istio.rules.regex import quoted
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def session_config(session: api.HttpSession, cluster: str = "") -> any_pb2.Any:
    """The settings of a route; ``cluster``: those of one cluster of several (see ``session_match``)."""
    suffix = _suffix(cluster)
    settings = stateful_session_pb2.StatefulSession()
    if session.header:
        state = header_pb2.HeaderBasedSessionState(name=f"{session.header}{suffix}")
        settings.session_state.name = "envoy.http.stateful_session.header"
        settings.session_state.typed_config.CopyFrom(any_of(state))
    else:
        cookie = cookie_pb2.CookieBasedSessionState()
        cookie.cookie.name, cookie.cookie.path = f"{session.cookie}{suffix}", session.path
        if session.ttl is not None:
            cookie.cookie.ttl.CopyFrom(duration(session.ttl))
        settings.session_state.name = "envoy.http.stateful_session.cookie"
        settings.session_state.typed_config.CopyFrom(any_of(cookie))
    return any_of(stateful_session_pb2.StatefulSessionPerRoute(stateful_session=settings))


def session_match(session: api.HttpSession, cluster: str) -> rc.HeaderMatcher:
    """The match of requests with a session at one cluster of several. Envoy chooses the cluster before it looks at
    sessions: so each cluster has its own cookie or header, and a route for requests that have it."""
    if session.header:
        return rc.HeaderMatcher(name=f"{session.header}{_suffix(cluster)}", present_match=True)
    named = quoted(f"{session.cookie}{_suffix(cluster)}=")
    return rc.HeaderMatcher(name="cookie", string_match=regex(f"(?:.*;[ ]*)?{named}.*"))


def _suffix(cluster: str) -> str:
    return f"-{zlib.crc32(cluster.encode()):08x}" if cluster else ""


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    return any_of(stateful_session_pb2.StatefulSession()) if context.sessions else None


STATEFUL_SESSION = FilterTranslator(
    name="envoy.filters.http.stateful_session",
    config=stateful_session_pb2.StatefulSession,
    hcm=_hcm,
)
