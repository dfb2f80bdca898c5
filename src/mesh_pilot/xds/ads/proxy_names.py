"""The connected proxies that somebody means by a name, a node id or an address.

Names need not be unique: an agent calls its proxy by the hostname, and cloned machines have the same one. Each is
served for itself all the same. But a question about one of them must not be answered with another's configuration, so
what means several is refused, with what tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import structlog

from mesh_pilot.model.proxy import Proxy

log = structlog.get_logger(scope="xds")

NAMED = 20
"""Proxies that a refusal names."""

MAX_WARNED = 1000
"""Names that are remembered, so that each is logged once."""


class SeveralProxies(Exception):
    """A name that several connected proxies have."""

    def __init__(self, text: str, proxies: Sequence[Proxy]) -> None:
        more = f"; and {len(proxies) - NAMED} more" if len(proxies) > NAMED else ""
        shown = "; ".join(map(told_apart, proxies[:NAMED]))
        what = "write a node id or an address instead"
        super().__init__(f"{len(proxies)} connected proxies are called {text[:200]}: {what}: {shown}{more}")
        self.proxies = proxies


@attrs.frozen
class MeantProxies:
    """The connected proxies that somebody means: of all that it may be, those named most closely."""

    closeness: int = 0
    """0 for a node id, and more for what is less certain: see ``_closeness``."""
    proxies: tuple[Proxy, ...] = ()
    """The latest stream's of each."""
    connected: tuple[str, ...] = ()
    """Names of the first that are connected, where none is meant."""

    def only(self, text: str) -> Proxy | None:
        """The proxy; None without one. Raises SeveralProxies."""
        if len(self.proxies) > 1:
            raise SeveralProxies(text, self.proxies)
        return self.proxies[0] if self.proxies else None


def meant_by(text: str, proxies: Iterable[Proxy]) -> MeantProxies:
    """The proxies, of the streams that are open, that somebody means by this."""
    found: dict[int, dict[tuple[str, str], Proxy]] = {}
    names: set[str] = set()
    for proxy in proxies:
        names.add(proxy.name)
        if (closeness := _closeness(proxy, text)) is not None:
            found.setdefault(closeness, {})[machine_of(proxy)] = proxy
    if not found:
        return MeantProxies(connected=tuple(sorted(names)[:NAMED]))
    best = min(found)
    return MeantProxies(best, tuple(found[best].values()))


def together(meant: Iterable[MeantProxies]) -> MeantProxies:
    """The proxies that are meant, of those of several workers, each of which knows only its own."""
    answers = [*meant]
    known = [each for each in answers if each.proxies]
    if not known:
        names = sorted({name for each in answers for name in each.connected})
        return MeantProxies(connected=tuple(names[:NAMED]))
    best = min(each.closeness for each in known)
    proxies = [proxy for each in known if each.closeness == best for proxy in each.proxies]
    return MeantProxies(best, tuple({machine_of(proxy): proxy for proxy in proxies}.values()))


def is_pattern(text: str) -> bool:
    """True for what may mean any number of proxies."""
    return any(sign in text for sign in "*?[")


def machine_of(proxy: Proxy) -> tuple[str, str]:
    """The marks of a proxy: its node id has name and address, which behind different routers may be the same ones.

    Several streams from one address with one node id are one proxy's.
    """
    return proxy.id, proxy.peer


def told_apart(proxy: Proxy) -> str:
    """A proxy among others of its name, for people."""
    addresses = ", ".join(proxy.ip_addresses)
    return f"{proxy.id} ({addresses}{f', connected from {proxy.peer}' if proxy.peer not in proxy.ip_addresses else ''})"


def _closeness(proxy: Proxy, text: str) -> int | None:
    """How closely this names a proxy, 0 the closest; None: not at all."""
    ways = (
        text == proxy.id,
        text == proxy.name,
        text in proxy.ip_addresses,
        text == proxy.peer != "",
        text == proxy.name.partition(".")[0],
    )
    return next((at for at, is_meant in enumerate(ways) if is_meant), None)


class EqualNameLog:
    """Warns once of each name that several connected proxies have. State: the names that were warned of."""

    def __init__(self) -> None:
        self._warned: dict[str, None] = {}

    def came(self, proxy: Proxy, others: Iterable[Proxy]) -> None:
        """A proxy has connected; ``others`` are those of its name."""
        other = next((each for each in others if machine_of(each) != machine_of(proxy)), None)
        if other is None or proxy.name in self._warned:
            return
        self._warned[proxy.name] = None
        if len(self._warned) > MAX_WARNED:
            del self._warned[next(iter(self._warned))]
        log.warning(
            "several connected proxies have one name: give each machine another hostname, or each agent another --name",
            name=proxy.name,
            proxies=[told_apart(other), told_apart(proxy)],
        )
