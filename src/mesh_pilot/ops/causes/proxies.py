"""Proxies: which of them do not have what is written, and why; and which have left."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import attrs

from mesh_pilot.explain.truth.facts import PlaneFacts, of_proxy, streams_by_proxy
from mesh_pilot.explain.truth.states import TruthState
from mesh_pilot.model.counts import counted
from mesh_pilot.model.events import Withheld
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.ops.causes.cause import Cause, CauseKind, CauseReach, CauseSubject, assessed, reach
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment, Gravity
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.xds.ads.known_proxies import GoneProxy
from mesh_pilot.xds.ads.proxy_names import machine_of
from mesh_pilot.xds.ads.status import Connection, NackRecord

IN_SYNC = Assessment("in sync")
FAILING, GONE = "failing", "gone"

PATIENCE_SECONDS = 10.0
"""The time that a proxy may take to answer before that is worth a word."""

GRACE_SECONDS = 30.0
"""The time in which a proxy that has left may come back before that is worth a word."""

TOLD_FOR = timedelta(hours=1)
"""The time after which a proxy that has left no longer counts as a cause; lists still have it."""

SLOW, WARMS, CLONES = "slow proxy", "warming proxy", "equal names"
"""Kinds of what is remembered as seen first."""


@attrs.frozen
class AssessedProxy:
    """A stream of a proxy with its assessment."""

    connection: Connection
    proxy: Proxy
    assessment: Assessment
    nacks: Sequence[NackRecord] = ()
    """The refusals that stand."""


def assess_proxies(
    state: PlaneState, facts: PlaneFacts, wanted: Callable[[Proxy], bool] = lambda proxy: True
) -> Iterator[AssessedProxy]:
    """The connected proxies, each stream with its assessment, one by one: to be taken in turns with the proxies."""
    failing, streams = _failing(state), streams_by_proxy(state.xds.status)
    every = [(each, each.proxy) for each in state.xds.status.proxies() if each.proxy is not None]
    slow = state.first_seen.look(SLOW, [c.id for c, _ in every if c.follower.is_behind])
    warm = state.first_seen.look(WARMS, [c.id for c, _ in every if c.warming])
    now = datetime.now(UTC)
    for c, proxy in every:
        if not wanted(proxy):
            continue
        withheld = facts.withheld_of(proxy, streams[proxy.id]) if facts.verdicts else ()
        yield _assessed(c, proxy, failing, withheld, slow.get(c.id, now), warm.get(c.id, now))


def _assessed(
    connection: Connection,
    proxy: Proxy,
    failing: Mapping[str, Assessment],
    withheld: Sequence[tuple[str, Withheld]],
    slow_since: datetime,
    warm_since: datetime,
) -> AssessedProxy:
    """The assessment of a stream: the worst that is so counts."""
    truth = of_proxy(connection)
    if truth.state is TruthState.REFUSED:
        nacks = standing_nacks(connection)
        why = "; ".join(f"it refuses {_short(each)}: {each.nack.reason}" for each in nacks)
        since = min((each.at for each in nacks), default=None)
        return AssessedProxy(connection, proxy, assessed("refused", Gravity.ERROR, why, since), nacks)
    if proxy.name in failing:
        return AssessedProxy(connection, proxy, failing[proxy.name])
    if withheld:
        names = ", ".join(name_of(each.key) for _, each in withheld[:3])
        since = min(each.refusal.at for _, each in withheld)
        return AssessedProxy(
            connection, proxy, assessed("withheld", Gravity.WARNING, f"it is not given {names} as written", since)
        )
    if truth.state is TruthState.WARMING:
        return AssessedProxy(connection, proxy, assessed("warming", Gravity.WARNING, truth.why, warm_since))
    if truth.state is TruthState.PENDING:
        is_slow = (datetime.now(UTC) - slow_since).total_seconds() > PATIENCE_SECONDS
        severity = Gravity.WARNING if is_slow else Gravity.OK
        return AssessedProxy(
            connection, proxy, assessed("pending", severity, "it has not answered what it was sent", slow_since)
        )
    return AssessedProxy(connection, proxy, IN_SYNC)


def standing_nacks(connection: Connection) -> list[NackRecord]:
    """The latest NACK of each type that a client refuses now."""
    latest = {record.nack.type_url: record for record in connection.nacks}
    return [record for type_url, record in latest.items() if type_url in connection.follower.refusing]


def _failing(state: PlaneState) -> dict[str, Assessment]:
    found: dict[str, Assessment] = {}
    for standing in state.failures():
        failure = standing.failure
        assessment = assessed(FAILING, Gravity.ERROR, f"{failure}: {failure.error}", failure.since)
        for name in standing.proxies:
            found.setdefault(name, assessment)
    return found


def _short(record: NackRecord) -> str:
    return RESOURCE_TYPES[record.nack.type_url].short


# -- causes


def proxy_causes(state: PlaneState, facts: PlaneFacts, every: Sequence[AssessedProxy]) -> Iterator[Cause]:
    """The causes about proxies; things that are withheld from them are told of the objects."""
    state.first_seen.look(CLONES, _clones(every))
    return proxy_causes_in(state, facts, every)


def proxy_causes_in(
    state: PlaneState,
    facts: PlaneFacts,
    every: Sequence[AssessedProxy],
    is_seen: Callable[[str], bool] = lambda _: True,
) -> Iterator[Cause]:
    """The same of proxies of some namespaces, with those that have left there; nothing is noted as seen."""
    total = len({each.proxy.name for each in every})
    yield from _refusals(facts, every, total)
    for word, why in (
        ("warming", "they have accepted what they were sent and do not use it"),
        ("pending", "they have not answered what they were sent"),
    ):
        found = [e for e in every if e.assessment.state == word and e.assessment.severity is not Gravity.OK]
        if found:
            yield _of(found, total, why if len(found) > 1 else found[0].assessment.why)
    yield from _equal_names(state, every, total)
    if state.events is not None and state.others is None:  # else it may be at another worker by now
        yield from _gone([each for each in gone_proxies(state) if is_seen(each.proxy.namespace)], total)


def _refusals(facts: PlaneFacts, every: Iterable[AssessedProxy], total: int) -> Iterator[Cause]:
    """Refusals that stand, a cause for each type, reason and objects. Why nothing is done about one is told."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[tuple[AssessedProxy, NackRecord]]] = defaultdict(list)
    for each in every:
        for record in each.nacks:
            nack = record.nack
            groups[nack.type_url, nack.reason, tuple(map(str, nack.configs))].append((each, record))
    for (type_url, reason, configs), group in groups.items():
        first = group[0][0]
        on_hold = facts.why_on_hold(first.proxy, type_url)
        objects = f"made of {', '.join(configs[:3])}" if configs else "no object explains it"
        yield Cause(
            kind=CauseKind.PROXIES,
            subject=CauseSubject("Proxy", first.proxy.namespace, first.proxy.name),
            assessment=assessed(
                "refused",
                Gravity.ERROR,
                f"{RESOURCE_TYPES[type_url].short} {', '.join(group[0][1].nack.names[:2])} refused: {reason}",
                min(record.at for _, record in group),
            ),
            touches=reach("proxies", [each.proxy.name for each, _ in group], total),
            command=f"mesh-pilot proxy-status {shlex.quote(first.proxy.name)}",
            more="; ".join(filter(None, (objects, f"nothing is done about it: {on_hold}" if on_hold else ""))),
        )


def _of(found: Sequence[AssessedProxy], total: int, why: str) -> Cause:
    first = min(found, key=lambda each: each.proxy.name)
    times = [each.assessment.since for each in found if each.assessment.since is not None]
    return Cause(
        kind=CauseKind.PROXIES,
        subject=CauseSubject("Proxy", first.proxy.namespace, first.proxy.name),
        assessment=assessed(first.assessment.state, first.assessment.severity, why, min(times, default=None)),
        touches=reach("proxies", [each.proxy.name for each in found], total),
        command=f"mesh-pilot proxy-status {shlex.quote(first.proxy.name)}",
    )


def _equal_names(state: PlaneState, every: Iterable[AssessedProxy], total: int) -> Iterator[Cause]:
    """Several machines that say that they are the same proxy, such as clones of one."""
    for name, found in sorted(_clones(every).items()):
        addresses = sorted({each.proxy.peer or each.proxy.ip_addresses[0] for each in found})
        yield Cause(
            kind=CauseKind.PROXIES,
            subject=CauseSubject("Proxy", found[0].proxy.namespace, name),
            assessment=assessed(
                "conflicting",
                Gravity.WARNING,
                f"{len(found)} proxies have the name {name}: {', '.join(addresses[:5])}",
                state.first_seen.since(CLONES, name),
            ),
            touches=reach("proxies", [name], total),
            command="mesh-pilot proxy-status",
            more="commands cannot tell them apart by their name; give each machine its own name",
        )


def _clones(every: Iterable[AssessedProxy]) -> dict[str, list[AssessedProxy]]:
    """The proxies of each name that several machines have."""
    machines: dict[str, dict[tuple[str, str], AssessedProxy]] = defaultdict(dict)
    for each in every:
        machines[each.proxy.name].setdefault(machine_of(each.proxy), each)
    return {name: [*found.values()] for name, found in machines.items() if len(found) > 1}


# -- those that have left


def gone_proxies(state: PlaneState) -> list[GoneProxy]:
    """The proxies that have left and had the time to come back, the latest first. One of a name that is connected is
    back, whatever its address is now."""
    now = datetime.now(UTC)
    here = {each.proxy.name for each in state.xds.status.proxies() if each.proxy is not None}
    found = {**state.gone_before, **state.xds.status.known.gone}.values()
    return [
        each
        for each in sorted(found, key=lambda each: each.at, reverse=True)
        if each.proxy.name not in here
        and (now - each.at).total_seconds() >= GRACE_SECONDS
        and now.timestamp() - state.started >= GRACE_SECONDS
    ]


def assess_gone(gone: GoneProxy) -> Assessment:
    return assessed(GONE, Gravity.WARNING, f"it has left; revision {gone.revision} is the last that it had", gone.at)


def _gone(found: Sequence[GoneProxy], connected: int) -> Iterator[Cause]:
    """One cause for all that have left lately; a whole fleet is worse."""
    lately = [each for each in found if datetime.now(UTC) - each.at < TOLD_FOR]
    if not lately:
        return
    is_all = connected == 0
    names = sorted({each.proxy.name for each in lately})
    first = lately[0]
    what = "all proxies have left" if is_all else f"{counted(len(names), 'proxy', 'proxies')} left, and not back"
    yield Cause(
        kind=CauseKind.PROXIES,
        subject=CauseSubject("Proxy", first.proxy.namespace, first.proxy.name),
        assessment=assessed(GONE, Gravity.ERROR if is_all else Gravity.WARNING, what, first.at),
        touches=CauseReach(len(names), connected + len(names), "proxies", names[:5]),
        command="mesh-pilot history proxy" if len(names) > 1 else f"mesh-pilot history proxy {shlex.quote(names[0])}",
        more="who was stopped on purpose is told for an hour",
    )
