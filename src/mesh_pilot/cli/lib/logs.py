"""Logs: one line for each event, for terminals or machines, with a level for each scope.

Modules log through ``structlog.get_logger(scope=...)``. Scopes nest by dots: ``sources:debug`` is also the level of
``sources.files`` unless that has one. Everything goes to standard error, including warnings and errors that libraries
log with Python's ``logging``; `output` says what becomes of a line that it does not take. structlog is imported when
logs are configured, because the help of flags needs only the names of scopes and levels.
"""

from __future__ import annotations

import logging
import re
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, TextIO

from mesh_pilot.base.output import when_lines_were_dropped
from mesh_pilot.cli.lib.terminal import has_colour
from mesh_pilot.model.log_levels import SCOPES, SWITCH, LogLevels, parse_levels
from mesh_pilot.model.redaction import redacted

__all__ = ["SCOPES", "LogFormat", "LogLevels", "configure", "parse_levels"]

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, but for tabs and ends of lines; and those that turn the direction of text."""


class LogFormat(StrEnum):
    TEXT = "text"
    """Readable on a terminal; ``key=value`` (logfmt) in a pipe or a file."""
    JSON = "json"


def configure(levels: LogLevels, style: LogFormat, stream: TextIO, *, worker: int | None = None) -> None:
    """Send the logs of the whole process to ``stream``. Replaces an earlier configuration.

    ``worker``: the number that each line carries; 0: the fork server.
    """
    import structlog

    SWITCH.begin(levels)

    def of_worker(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return event if worker is None else {**event, "worker": worker}

    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    renderers = _renderers(style, stream)
    structlog.configure(
        processors=[_drop_below_level, structlog.stdlib.add_log_level, stamp, of_worker, *renderers],
        logger_factory=structlog.WriteLoggerFactory(stream),
        wrapper_class=_switched_logger(),
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
    when_lines_were_dropped(_say_dropped)


def _say_dropped(output: str, lines: int, reason: str) -> None:
    import structlog

    structlog.get_logger(scope="bootstrap").warning("lines were dropped", output=output, lines=lines, reason=reason)


def _drop_below_level(_: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """A structlog processor that drops events below the level of their scope."""
    if logging.getLevelNamesMapping()[method.upper()] < SWITCH.levels.of(str(event.get("scope", ""))):
        from structlog import DropEvent

        raise DropEvent
    return event


def _switched_logger() -> type[Any]:
    """A class of loggers, also of those that are bound for long, whose events at levels that no scope has end here."""
    import structlog

    whole: Any = structlog.make_filtering_bound_logger(logging.NOTSET)

    class SwitchedLogger(whole):  # type: ignore[misc]  # its base is made at run time
        def debug(self, event: str, *args: Any, **fields: Any) -> Any:
            return super().debug(event, *args, **fields) if SWITCH.least <= logging.DEBUG else None

        def info(self, event: str, *args: Any, **fields: Any) -> Any:
            return super().info(event, *args, **fields) if SWITCH.least <= logging.INFO else None

        def warning(self, event: str, *args: Any, **fields: Any) -> Any:
            return super().warning(event, *args, **fields) if SWITCH.least <= logging.WARNING else None

    return SwitchedLogger


def _renderers(style: LogFormat, stream: TextIO) -> list[Processor]:
    import structlog

    if style is LogFormat.JSON:
        # Local variables may hold private keys.
        plain = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        tracebacks = structlog.processors.ExceptionRenderer(plain)
        return [_machine_names, tracebacks, _without_secrets, structlog.processors.JSONRenderer(default=str)]
    if stream.isatty():
        console = structlog.dev.ConsoleRenderer(
            colors=has_colour(stream), pad_event_to=1, exception_formatter=structlog.dev.plain_traceback
        )
        return [_human_names, structlog.processors.format_exc_info, _without_secrets, _without_controls, console]
    order = ["time", "level", "scope", "msg"]
    logfmt = structlog.processors.LogfmtRenderer(key_order=order, drop_missing=True)
    return [_machine_names, structlog.processors.format_exc_info, _without_secrets, _without_controls, logfmt]


def _without_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The last look at each line, whoever wrote it: a reason may quote a URL with its password."""
    plain = (str, int, float, list, tuple, dict, NoneType)
    found: EventDict = redacted({key: each if isinstance(each, plain) else str(each) for key, each in event.items()})
    return found


def _without_controls(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Text of others, such as the path of a request, cannot steer the terminal on which the log is read."""
    return {
        key: _CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), value)
        if isinstance(value, str) and not value.isprintable()
        else value
        for key, value in event.items()
    }


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
