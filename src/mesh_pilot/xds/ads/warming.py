"""Warming: a client has accepted something and does not use it yet. Pure: the caller has the clock.

An ACK says that Envoy has read a resource. A listener or cluster takes effect only once it has all that it waits for
(route tables, secrets, endpoints, DNS); until then Envoy uses the one before, if there was one, and says nothing of it
over xDS. Two sources tell of it:

* *The agent* looks at its Envoy's admin interface and reports what warms (``model.warming``). That is exact. A version
  that was replaced since does not count: Envoy does not end the warming of a listener that is changed back.
* *The stream*, without an agent that reports. Listeners and clusters wait for each name in them that the client
  requests, that does not exist and that it was never sent. They also wait for a name in them that the client, which has
  requested others of the type, does not request within `WARMING_SECONDS`.

A resource that has warmed for `WARMING_SECONDS` is *shown*. It is *overdue*, and quarantine's matter, if in addition
nothing else explains it for as long: every name that the client requests is served, every response answered, and it
waits for nothing that takes its time (``PATIENT``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET, Resource
from mesh_pilot.model.warming import Awaited, WaitKind, WarmingResource
from mesh_pilot.xds.ads.messages import Response
from mesh_pilot.xds.ads.references import References
from mesh_pilot.xds.ads.stream import Stream

WARMING_SECONDS = 10.0
"""The time that a resource may warm before it is shown, and before something is done about it."""

NOT_IN_USE = "accepted, but not in use"
"""The beginning of the reason of a refusal that such a resource amounts to."""

MAX_LOOKED_AT = 20
"""Resources of one response that are searched for names which the client does not request. A response with more is a
first one: what such a client waits for it requests."""

MAX_HAD = 10_000
"""Names that a client is remembered to have had."""

_WAITED_FOR = {ROUTE: WaitKind.RDS, SECRET: WaitKind.SDS, EXTENSION: WaitKind.ECDS, ENDPOINT: WaitKind.EDS}
_BY_REFERRER = {LISTENER: (ROUTE, SECRET, EXTENSION), CLUSTER: (SECRET, ENDPOINT)}
"""The types that listeners and clusters wait for."""
_NEVER_ANSWERED = (ROUTE, SECRET, EXTENSION)
"""The types of which no answer about a name that does not exist ends the wait."""

NOTED_TYPES = frozenset((*_BY_REFERRER, *_NEVER_ANSWERED))
"""The types whose responses matter here."""

Key = tuple[str, str, str]

ReferencesOf = Callable[[Resource], References]
"""The function that gives what a resource names: ``references_of``, remembered."""


@attrs.frozen
class Warming:
    """A resource that warms, for people."""

    resource: WarmingResource
    seconds: float
    """The time since it was first seen to warm."""


@attrs.define
class _Seen:
    resource: WarmingResource
    since: float
    unexplained_since: float
    told_at: float = -math.inf


class WarmingWatch:
    """The resources that warm at one client.

    Mutable state: what was seen to warm and since when; the versions of listeners that were reported; names that it was
    ever sent; the resources to be looked at, and when.
    """

    def __init__(self, references_of: ReferencesOf) -> None:
        self._references_of = references_of
        self._seen: dict[Key, _Seen] = {}
        self._versions: dict[str, tuple[str, str]] = {}
        """The hash with which a listener was reported, and the version that the client had when it was first."""
        self._had: set[tuple[str, str]] = set()
        self._fresh: dict[str, Resource] = {}
        self._fresh_at = math.inf
        self._unrequested: tuple[WarmingResource, ...] = ()

    def __repr__(self) -> str:
        return f"<WarmingWatch {[str(each.resource) for each in self._seen.values()]}>"

    def warms(self, type_url: str) -> bool:
        """True if anything of a type was seen to warm in the last look."""
        return any(each.resource.type_url == type_url for each in self._seen.values())

    def note_sent(self, response: Response, now: float) -> None:
        """The client is sent a response of one of the ``NOTED_TYPES``."""
        type_url = response.type_url
        if type_url in _NEVER_ANSWERED and len(self._had) < MAX_HAD:
            self._had.update((type_url, resource.name) for resource in response.resources)
        if type_url not in _BY_REFERRER:
            return
        if len(response.touched) <= MAX_LOOKED_AT:
            touched = frozenset(response.touched)
            self._fresh.update((f"{type_url} {r.name}", r) for r in response.resources if r.name in touched)
            self._fresh_at = now

    @property
    def is_idle(self) -> bool:
        """True if nothing warms, and nothing is going to be looked at."""
        return not (self._seen or self._fresh)

    def look(self, stream: Stream, report: Sequence[WarmingResource] | None, now: float, *, is_answered: bool) -> None:
        """Look at what warms. ``report``: the agent's, None without one. ``is_answered``: nothing waits for the client,
        and nothing is to be sent to it."""
        proxy = stream.proxy
        if proxy is None or proxy.agent or proxy.is_grpc:
            return
        missing = {
            (type_url, name)
            for type_url in _NEVER_ANSWERED
            for name in stream.missing(type_url)
            if (type_url, name) not in self._had
        }
        if report is not None:
            self._fresh.clear()
            named = {each.name for each in report}
            self._versions = {name: each for name, each in self._versions.items() if name in named}
            found = [_placed(stream, each) for each in report if self._is_current(stream, each)]
        elif stream.is_aggregated:
            found = [*_waiting_for(stream, missing, self._references_of)] if missing else []
            found += self._not_requested(stream, now)
        else:
            found = []
        self._note(stream, found, now, is_explained=bool(missing) or not is_answered)

    def _note(self, stream: Stream, found: Iterable[WarmingResource], now: float, *, is_explained: bool) -> None:
        seen: dict[Key, _Seen] = {}
        for each in found:
            held = stream.holds(each.type_url).entries.get(each.name)
            key = (each.type_url, each.name, held.version if held is not None else "")
            known = self._seen.get(key)
            since = self._fresh_at if each in self._unrequested else now
            known = seen[key] = known or _Seen(each, since, since)
            known.resource = each
            if is_explained:
                known.unexplained_since = now
        self._seen = seen

    def shown(self, now: float) -> tuple[Warming, ...]:
        """The resources that have warmed for long enough to be shown."""
        return tuple(
            Warming(each.resource, now - each.since)
            for each in self._seen.values()
            if now - each.since >= WARMING_SECONDS
        )

    def overdue(self, now: float) -> dict[str, list[WarmingResource]]:
        """The resources that are overdue, by type; each is told once in `WARMING_SECONDS`."""
        found: dict[str, list[WarmingResource]] = {}
        for each in self._seen.values():
            if not each.resource.is_patient and now >= max(each.unexplained_since, each.told_at) + WARMING_SECONDS:
                each.told_at = now
                found.setdefault(each.resource.type_url, []).append(each.resource)
        return found

    def deadline(self, now: float) -> float:
        """When to look again though nothing has happened; infinity for never."""
        times = [self._fresh_at + WARMING_SECONDS if self._fresh else math.inf]
        for each in self._seen.values():
            times += [each.since + WARMING_SECONDS]
            if not each.resource.is_patient:
                times += [max(each.unexplained_since, each.told_at) + WARMING_SECONDS]
        return min((at for at in times if at > now), default=math.inf)

    # -- what warms

    def _is_current(self, stream: Stream, reported: WarmingResource) -> bool:
        """True unless the version that warms was replaced since."""
        name = reported.name
        held = stream.holds(reported.type_url).entries.get(name)
        if held is None or reported.type_url != LISTENER or not reported.version:
            return held is not None
        if self._versions.get(name, ("", ""))[0] != reported.version:
            self._versions[name] = (reported.version, held.version)
        return self._versions[name][1] == held.version

    def _not_requested(self, stream: Stream, now: float) -> tuple[WarmingResource, ...]:
        """The resources of the latest responses that name what the client does not request."""
        if self._fresh and now >= self._fresh_at + WARMING_SECONDS:
            fresh, self._fresh = self._fresh, {}
            self._unrequested = tuple(_unrequested(stream, fresh.values(), self._references_of))
        elif self._unrequested:
            still = (stream.holds(each.type_url).entries.get(each.name) for each in self._unrequested)
            self._unrequested = tuple(
                _unrequested(stream, [each for each in still if each is not None], self._references_of)
            )
        return self._unrequested


def _placed(stream: Stream, reported: WarmingResource) -> WarmingResource:
    """With an extension that the client has been sent as what it is: Envoy fetches the module of it."""
    has = stream.holds(EXTENSION).entries
    awaited = (
        Awaited(WaitKind.FETCH, each.name) if each.kind is WaitKind.ECDS and each.name in has else each
        for each in reported.waits_for
    )
    return attrs.evolve(reported, waits_for=tuple(awaited))


def _unrequested(
    stream: Stream, resources: Iterable[Resource], references_of: ReferencesOf
) -> Iterator[WarmingResource]:
    for resource in resources:
        if stream.holds(resource.type_url).entries.get(resource.name) != resource:
            continue
        references = references_of(resource)
        awaited = []
        for type_url in _BY_REFERRER[resource.type_url]:
            requested = stream.requests(type_url)
            if requested is not None:
                held = stream.holds(type_url).entries
                names = [name for name in references.of(type_url) if name not in requested and name not in held]
                awaited += [Awaited(_WAITED_FOR[type_url], name) for name in sorted(names)]
        if awaited:
            yield WarmingResource(resource.type_url, resource.name, resource.version, tuple(awaited))


def _waiting_for(
    stream: Stream, missing: set[tuple[str, str]], references_of: ReferencesOf
) -> Iterator[WarmingResource]:
    """The listeners and clusters that wait for names; what none of them is known to name waits for itself."""
    left = set(missing)
    for type_url, waited_for in _BY_REFERRER.items():
        if not any(waited in waited_for for waited, _ in left):
            continue
        for resource in stream.holds(type_url).entries.values():
            references = references_of(resource)
            named = sorted(
                (waited, name) for waited, name in missing if waited in waited_for and name in references.of(waited)
            )
            if named:
                left.difference_update(named)
                awaited = tuple(Awaited(_WAITED_FOR[waited], name) for waited, name in named)
                yield WarmingResource(type_url, resource.name, resource.version, awaited)
    for type_url, name in sorted(left):
        yield WarmingResource(type_url, name, "", (Awaited(_WAITED_FOR[type_url], name),))
