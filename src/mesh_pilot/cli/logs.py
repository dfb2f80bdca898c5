"""Logs: one line for each event, for terminals or machines, with a level for each scope.

Modules log through ``structlog.get_logger(scope=...)``. Scopes nest by dots: ``sources:debug`` is also the level of
``sources.files`` unless that has one. Everything goes to standard error, including warnings and errors that libraries
log with Python's ``logging``. structlog is imported when logs are configured, because the help of flags needs only the
names of scopes and levels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

import attrs

from mesh_pilot.cli.terminal import has_colour

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

SCOPES: Mapping[str, str] = {
    "admin": "orders of an operator on this machine",
    "agent": "mesh-pilot proxy: its start and end, and below it its parts, such as agent.dns and agent.relay",
    "bootstrap": "start, readiness, drain",
    "config": "objects refused, and accepted again",
    "election": "which replica leads, and why no longer",
    "envoy": "translators: resources that could not be generated, and their configs",
    "mcp": "servers of configuration: connected, lost, NACKs sent and received",
    "ops": "the web and metrics ports: internal errors in requests",
    "quarantine": "objects that proxies refuse, from the search to the end",
    "registration": "workloads that register themselves: new, back, gone",
    "rpc": "gRPC connections: opened, lost, misbehaving peers",
    "security": "certificates: who was refused and why, what was signed, roots and their rotation",
    "sources": "every source, and the supervisor that restarts them",
    "state": "what is kept over restarts",
    "world": "the reducer: revisions, what changed and why, conflicts",
    "xds": "proxies: connected, ACK, NACK, disconnected",
}
"""Every scope, with its content."""

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "none": logging.CRITICAL + 10,
}


class LogFormat(StrEnum):
    TEXT = "text"
    """Readable on a terminal; ``key=value`` (logfmt) in a pipe or a file."""
    JSON = "json"


@attrs.frozen
class LogLevels:
    """The default level, and the levels of scopes that differ. Numbers of Python's ``logging``."""

    default: int = logging.INFO
    scopes: Mapping[str, int] = attrs.field(factory=dict)

    def of(self, scope: str) -> int:
        """The level of a scope, else of its nearest parent, else the default."""
        while scope:
            if scope in self.scopes:
                return self.scopes[scope]
            scope = scope.rpartition(".")[0]
        return self.default

    def drop_below_level(self, _: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """A structlog processor that drops events below the level of their scope."""
        if logging.getLevelNamesMapping()[method.upper()] < self.of(str(event.get("scope", ""))):
            from structlog import DropEvent

            raise DropEvent
        return event

    def text(self) -> str:
        """The levels, for ``parse_levels``."""
        names = {number: name for name, number in LEVELS.items()}
        return ",".join([names[self.default], *(f"{scope}:{names[level]}" for scope, level in self.scopes.items())])


def parse_levels(text: str) -> LogLevels:
    """Read ``level`` or ``scope:level,...``; the scope ``default`` is all those not named.

    Raises ValueError naming the part that is wrong and what would be right.
    """
    default, scopes = logging.INFO, {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        scope, colon, name = part.rpartition(":")
        level = LEVELS.get(name.lower())
        if level is None:
            raise ValueError(f"{part!r}: unknown level {name!r} (one of {', '.join(LEVELS)})")
        if not colon or scope in ("default", "all"):
            default = level
        elif scope.split(".")[0] in SCOPES:
            scopes[scope] = level
        else:
            raise ValueError(f"{part!r}: unknown scope {scope!r} (default, {', '.join(SCOPES)})")
    return LogLevels(default, scopes)


def configure(levels: LogLevels, style: LogFormat, stream: TextIO, *, worker: int | None = None) -> None:
    """Send the logs of the whole process to ``stream``. Replaces an earlier configuration.

    ``worker``: the number that each line carries; 0: the fork server.
    """
    import structlog

    def of_worker(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return event if worker is None else {**event, "worker": worker}

    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    renderers = _renderers(style, stream)
    structlog.configure(
        processors=[levels.drop_below_level, structlog.stdlib.add_log_level, stamp, of_worker, *renderers],
        logger_factory=structlog.WriteLoggerFactory(stream),
        # Levels that no scope has cost nothing.
        wrapper_class=structlog.make_filtering_bound_logger(
            min(levels.default, *levels.scopes.values(), logging.CRITICAL)
        ),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_library_scope, structlog.stdlib.add_log_level, stamp, of_worker],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def _renderers(style: LogFormat, stream: TextIO) -> list[Processor]:
    import structlog

    if style is LogFormat.JSON:
        # Local variables may hold private keys.
        plain = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        tracebacks = structlog.processors.ExceptionRenderer(plain)
        return [_machine_names, tracebacks, structlog.processors.JSONRenderer(default=str)]
    if stream.isatty():
        console = structlog.dev.ConsoleRenderer(
            colors=has_colour(stream), pad_event_to=1, exception_formatter=structlog.dev.plain_traceback
        )
        return [_human_names, console]
    order = ["time", "level", "scope", "msg"]
    logfmt = structlog.processors.LogfmtRenderer(key_order=order, drop_missing=True)
    return [_machine_names, structlog.processors.format_exc_info, logfmt]


def _machine_names(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The keys that log collectors expect."""
    names = {"timestamp": "time", "event": "msg"}
    return {names.get(key, key): value for key, value in event.items()}


def _human_names(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The keys of structlog's renderer for terminals, which shows ``logger`` in brackets; the date is omitted."""
    event["logger"] = event.pop("scope", None)
    event["timestamp"] = str(event["timestamp"])[11:23]
    return event


def _library_scope(logger: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The scope of a library's event is the name of its logger."""
    event["scope"] = event["_record"].name
    return event
