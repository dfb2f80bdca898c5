"""The web page, the index of the debug pages, and the statistics of every part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum

import attrs
import structlog

from mesh_pilot import __version__
from mesh_pilot.base.containment import Contained
from mesh_pilot.explain.truth.facts import of_proxy
from mesh_pilot.explain.truth.states import TruthState
from mesh_pilot.model.counts import counted
from mesh_pilot.model.json import Json
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.ops import (
    election_pages,
    proxy_pages,
    quarantine_pages,
    reports,
    rollout_pages,
    source_pages,
    world_pages,
)
from mesh_pilot.ops.page.html import Cell, bad, described_links, line, links, page, table
from mesh_pilot.ops.state import PlaneState

log = structlog.get_logger(scope="ops")

Section = Callable[[PlaneState], tuple[bool, str]]
"""A section of the page: true if it shows no problem, and its HTML."""

PAGES = {
    "/ready": "whether proxies are let in, and what is wrong though they are; ?verbose names resources",
    "/metrics": "for Prometheus",
    "/debug": "this list",
    "/debug/syncz": "a stream each: what was sent and accepted, by Istio's names",
    "/debug/history": "the latest revisions: proxies touched, bytes, time to the last ACK, NACKs",
    "/debug/adsz": "a stream each, in full: node, subscriptions, bytes, refusals, what it waits for",
    "/debug/config_dump": "what a proxy was sent, as Envoy shows it: ?proxyID=NAME.NAMESPACE",
    "/debug/rejections": "what is refused, withheld, doubtful, in conflict, or failed",
    "/debug/configz": "objects in force, and where they were read: ?kind=K&namespace=N",
    "/debug/registryz": "services, merged over their sources",
    "/debug/endpointz": "endpoints, merged over their sources",
    "/debug/authenticationz": "who was let in, who was refused, and why",
    "/debug/ca": "the CA: who signs, trusted roots, the rotation of the root",
    "/debug/leaderz": "which replica leads, and which there are",
    "/debug/workloadz": "workloads that registered themselves, and the health that was reported",
    "/debug/derived": "what is memoised: ?name=FUNCTION&containing=TEXT tells what a value read, and what changed last",
    "/debug/statistics": "what each part says of itself",
    "/scopez": "levels of the log; PUT changes one",
    "/version": "of mesh-pilot",
    "/spiffe/bundle": "the mesh's own roots, for other trust domains",
}
"""Every page of the web port except the first, with a description."""


class Overview:
    """The page at ``/``. TruthState: the sections whose failure was logged."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._limiter = LogLimiter()

    def html(self) -> str:
        state = self._state
        sections = [self._guarded(section) for section in SECTIONS]
        summary = _summary(state, all_well=all(well for well, _ in sections))
        parts = [*summary, *(shown for _, shown in sections), links(tuple(PAGES))]
        return page(f"mesh-pilot {__version__}", parts, is_app=True)

    def _guarded(self, section: Section) -> tuple[bool, str]:
        """A section, or an error in its place; the other sections are shown."""
        with Contained(
            log,
            "cannot show a section of the web page",
            section=repr(section),
            is_logged=lambda: self._limiter.admit(section, time.monotonic()) is not None,
        ) as failed:
            return section(self._state)
        return False, line(f"A section cannot be shown: {type(failed.error).__name__}: {failed.error}", "bad")


def index() -> str:
    """The page at ``/debug``."""
    pages = {path: what for path, what in PAGES.items() if path != "/debug"}
    return page("mesh-pilot: pages", [described_links({"/": "overview", **pages})], reload=False)


def statistics(state: PlaneState) -> Json:
    """The ``statistics()`` of every long-lived part."""
    return {
        "world": jsonable(state.world.statistics()),
        "reducer": jsonable(state.reducer.statistics()),
        "memo": jsonable(state.world.memo.statistics()),
        "catalog": jsonable(state.catalog.statistics()),
        "xds": jsonable(state.xds.statistics()),
        **({"quarantine": jsonable(state.keeper.statistics())} if state.keeper is not None else {}),
        "changes": jsonable(state.changes.statistics()),
        "election": jsonable(state.election.statistics()),
        "sources": [jsonable(supervisor.statistics()) for supervisor in state.supervisors],
        "mcp": jsonable(state.mcp.statistics()),
        "grpc": [jsonable(server.statistics()) for server in state.rpc_servers],
        "http": [jsonable(server.statistics()) for server in state.http_servers],
    }


def jsonable(value: object) -> Json:
    """A frozen statistics object as JSON."""
    kind: type = type(value)
    if attrs.has(kind):
        return {field.name: jsonable(getattr(value, field.name)) for field in attrs.fields(kind)}
    match value:
        case Enum():
            return jsonable(value.value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {" ".join(key) if isinstance(key, tuple) else str(key): jsonable(v) for key, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [jsonable(item) for item in value]
        case _:
            return str(value)


def _summary(state: PlaneState, *, all_well: bool) -> Iterator[str]:
    """Readiness, stale sources, and totals."""
    reasons = state.not_ready()
    yield line("ready", "good") if not reasons else line("not ready: " + _pairs(reasons), "bad")
    stale = state.stale()
    for who, why in stale.items():
        yield line(f"{who}: {why}; what it said before stays in force", "bad")
    if not reasons and not stale and all_well:
        yield line("Everything is in force as written.", "good")
    if state.others is not None:
        count = len(state.others.numbers) + 1
        yield line(f"{count} workers. The proxies below are those of worker 1; add ?worker=2 for those of another.")
    world = state.world.statistics()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(world.configs.items()))
    up = timedelta(seconds=round(time.time() - state.started))
    facts = f"up {up}, revision {world.revision}: "
    yield line(
        facts + f"{counted(world.services, 'service')}, {counted(world.endpoints, 'endpoint')}, {kinds or 'no objects'}"
    )


def _sources(state: PlaneState) -> tuple[bool, str]:
    stale = state.stale()
    rows: list[tuple[str | Cell, ...]] = []
    for supervisor in state.supervisors:
        own = supervisor.statistics()
        trouble = stale.get(own.name) or own.waiting_for
        condition = f"{own.state}: {trouble}" if trouble else str(own.state)
        shown = bad(condition) if own.name in stale else condition
        rows.append((own.name, shown, str(own.source.items), str(own.source.rejected), str(own.restarts)))
    return not stale, table("Sources", ("name", "state", "objects", "refused", "restarts"), rows, "none")


def _refused(state: PlaneState) -> tuple[bool, str]:
    total = world_pages.count_rejections(state.world)
    rows = (
        (text.get("where", ""), text.get("object", ""), text.get("field", ""), bad(text["reason"]))
        for text in world_pages.rejections(state.world)
    )
    headers = ("where", "object", "field", "reason")
    return not total, table("Refused objects", headers, rows, "None.", total=total, more="/debug/rejections")


def _doubtful(state: PlaneState) -> tuple[bool, str]:
    total = world_pages.count_warnings(state.world)
    rows = (
        (text["where"], text["object"], text["field"], text["reason"]) for text in world_pages.warnings(state.world)
    )
    headers = ("where", "object", "field", "warning")
    return not total, table("Warnings", headers, rows, "None.", total=total, more="/debug/rejections")


def _proxies(state: PlaneState) -> tuple[bool, str]:
    return True, proxy_pages.proxy_table(state)


def _nacks(state: PlaneState) -> tuple[bool, str]:
    refused = any(of_proxy(each).state is TruthState.REFUSED for each in state.xds.status.streams())
    return not refused, proxy_pages.nack_table(state)


def _problems(shown: Callable[[PlaneState], str]) -> Section:
    """A section that is omitted when it is empty."""

    def section(state: PlaneState) -> tuple[bool, str]:
        html = shown(state)
        return not html, html

    return section


SECTIONS: tuple[Section, ...] = (
    _problems(lambda state: reports.failure_table(state.failures())),
    _problems(source_pages.held_table),
    _problems(quarantine_pages.quarantine_tables),
    _problems(rollout_pages.rollout_table),
    _sources,
    _refused,
    _doubtful,
    election_pages.replica_table,
    _problems(proxy_pages.warming_table),
    _proxies,
    _nacks,
    _problems(lambda state: reports.patch_table(state.catalog.diagnostics())),
    _problems(lambda state: reports.conflict_table(state.catalog.diagnostics())),
    _problems(lambda state: reports.denied_table(state.catalog.diagnostics())),
)
"""In the order of the page."""


def _pairs(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{who}: {why}" for who, why in reasons.items())
