"""Session persistence of rules and policies, as what tells a session's requests: a cookie or a header."""

from __future__ import annotations

import zlib

from mesh_pilot.api.istio.networking.v1alpha3 import HttpSession
from mesh_pilot.api.k8s.io.gateway_api.v1 import CookieConfig, SessionPersistence
from mesh_pilot.istio.meaning.durations import read_duration

_PREFIX = "session-"
_PERMANENT = "Permanent"


def session_of(session: SessionPersistence | None, owner: str) -> HttpSession | None:
    """The session of a rule or policy; ``owner`` names it, so that each has its own cookie or header."""
    if session is None:
        return None
    default = session.session_name or f"{_PREFIX}{zlib.crc32(owner.encode()):08x}"
    if session.type == "Header":
        return HttpSession(header=(session.header.name if session.header is not None else None) or default)
    cookie = session.cookie or session.cookie_config or CookieConfig()
    is_permanent = cookie.lifetime_type == _PERMANENT and session.absolute_timeout
    ttl = read_duration(session.absolute_timeout) if is_permanent and session.absolute_timeout else None
    return HttpSession(cookie=cookie.name or default, path=cookie.path or "/", ttl=ttl)
