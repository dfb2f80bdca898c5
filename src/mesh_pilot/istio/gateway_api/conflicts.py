"""Conflicts between the listeners of a Gateway and its ListenerSets.

Listeners of one port need different hostnames, and HTTP, HTTPS and TLS ones do not go with TCP ones; a UDP one goes
with all but another UDP one. Of two listeners that conflict the first wins: those of the Gateway itself, then those of
the ListenerSets, the oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.hosts import host_matches

_BY_HOST = frozenset(("HTTP", "HTTPS", "TLS"))
_STREAMS = frozenset(("TCP", "UDP"))
_DEFAULT_PORTS = {"HTTP": 80, "HTTPS": 443}

Place = tuple[ConfigKey, str]
"""A Gateway or ListenerSet, and the name of a listener."""


def listener_port(listener: api.Listener) -> int:
    """The port of a listener. One of a ListenerSet may leave it out for HTTP and HTTPS; 0 if that is not possible."""
    return listener.port or _DEFAULT_PORTS.get(listener.protocol, 0)


def conflicts(gateway: Config, sets: Iterable[Config]) -> dict[Place, str]:
    """The listeners that lose, by object and name, with the reasons ``ProtocolConflict`` and ``HostnameConflict``.

    ``sets`` are the ListenerSets that the Gateway lets in, in order of precedence.
    """
    accepted: dict[int, list[api.Listener]] = {}
    lost: dict[Place, str] = {}
    for config in (gateway, *sets):
        for listener in config.spec.listeners:
            port = listener.port if config is gateway else listener_port(listener)
            prior = next((other for other in accepted.get(port, ()) if not _distinct(listener, other)), None)
            if prior is None:
                accepted.setdefault(port, []).append(listener)
            else:
                is_host = listener.protocol == prior.protocol and listener.protocol not in _STREAMS
                lost[(config.key, listener.name)] = "HostnameConflict" if is_host else "ProtocolConflict"
    return lost


def overlaps(gateway: Config, sets: Iterable[Config], lost: Mapping[Place, str]) -> dict[Place, tuple[str, ...]]:
    """The listeners with TLS whose hostname has names in common with that of another one of the port, with the names
    of these listeners. ``lost`` are left out."""
    by_port: dict[int, list[tuple[Place, api.Listener]]] = {}
    for config in (gateway, *sets):
        for listener in config.spec.listeners:
            place = (config.key, listener.name)
            if listener.protocol in ("HTTPS", "TLS") and listener.tls is not None and place not in lost:
                by_port.setdefault(listener_port(listener), []).append((place, listener))
    found: dict[Place, tuple[str, ...]] = {}
    for listeners in by_port.values():
        for place, listener in listeners:
            for other, its in listeners:
                if place != other and host_matches(listener.hostname or "*", its.hostname or "*"):
                    found[place] = (*found.get(place, ()), its.name)
    return found


def _distinct(one: api.Listener, other: api.Listener) -> bool:
    """True if two listeners of one port can be told apart."""
    if (one.protocol == "UDP") != (other.protocol == "UDP"):
        return True
    if one.protocol in _BY_HOST and other.protocol in _BY_HOST:
        return (one.hostname or "*") != (other.hostname or "*")
    known = _BY_HOST | _STREAMS
    if one.protocol in known and other.protocol in known:
        return False
    return one.protocol != other.protocol
