"""Internal errors that stand: what could not be made, since when, what is served in its place.

An exception of our code costs the one thing at hand: a resource, a list of resources, an object. That stays as it
was, or is missing. Either way somebody has to learn of it, so whoever catches such an exception reports it here, and
takes it back once all is well. So does whoever waits for somebody else, such as a signer that is away: that is
*expected*, and logged as an outage in one line. The log has each failure once, however many proxies it concerns; pages,
metrics and ``/ready`` list what stands. The World owns the register of a control plane.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Container, Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum

import attrs
import structlog

LOGGED_OF_A_CAUSE = 20
"""Failures of one cause that are logged; more of them are only listed."""

PROXY, OBJECT, INDEXES, COLLECTION = "proxy", "object", "indexes", "collection"
"""Kinds of failures besides the types of resources."""

_world_log = structlog.get_logger(scope="world")
_LOGS = {OBJECT: _world_log, INDEXES: _world_log, COLLECTION: structlog.get_logger(scope="mcp")}
_envoy_log = structlog.get_logger(scope="envoy")
"""The log of kinds that are not in ``_LOGS``."""


_MISSING = "missing at proxies that did not have it before"


class Condition(Enum):
    """The condition of something that cannot be made."""

    STALE = "stale"
    """As it was when it last could be made."""
    MISSING = "missing"
    """There is none."""
    INCOMPLETE = "incomplete"
    """Made without one of its optional parts."""


@attrs.frozen(cache_hash=True)
class Failure:
    """Something that cannot be made now because of an internal error. Equal ones are one failure."""

    kind: str
    """The type of a resource (``CDS``); ``proxy`` for all that a proxy has; ``object`` for the intake of an object;
    ``indexes`` for what is worked out from objects; ``collection`` for a served object."""
    name: str
    """The resource, proxy or object; of a list of resources, the function that plans it."""
    state: Condition
    error: str
    """The exception in one line, such as ``KeyError: 'port'``."""
    place: str = attrs.field(eq=False)
    """The innermost line of its traceback: ``access_logs.py, line 12, in json_format``."""
    is_plan: bool = False
    """True if it is a list of resources: none is added or removed until it can be made."""
    part: str = ""
    """The function of the part that is left out, if the state is INCOMPLETE."""
    is_expected: bool = False
    """True for an outage of somebody else; ``error`` is then the reason alone."""
    configs: tuple[str, ...] = attrs.field(default=(), eq=False)
    """The objects that the last good version was made from."""
    since: datetime = attrs.field(factory=lambda: datetime.now(UTC), eq=False)

    @property
    def cause(self) -> Hashable:
        """Equal for failures that come from the same place in the code."""
        return (self.kind, self.state, self.place, self.error.partition(":")[0])

    def __str__(self) -> str:
        """The failing thing and its state: ``CDS outbound|80||a stays at its last good version``."""
        return f"{self.kind} {self.name} {self.consequence}"

    @property
    def consequence(self) -> str:
        """The state in words that follow the name."""
        is_stale = self.state is Condition.STALE
        match self.kind:
            case _ if self.state is Condition.INCOMPLETE:
                return f"is served without {self.part}"
            case _ if self.is_plan:
                return "is a list that stays as it was" if is_stale else f"is a list, {_MISSING}"
            case "proxy":
                return "is served as if it had not changed" if is_stale else "is sent nothing yet"
            case "object":
                return "is not applied, or in part only"
            case "collection":
                return "is served to other control planes as it was, or not at all"
            case "indexes":
                return "keep their last values"
        return "stays at its last good version" if is_stale else f"is {_MISSING}"


def failure_of(
    error: Exception,
    kind: str,
    name: str,
    state: Condition,
    *,
    is_plan: bool = False,
    part: str = "",
    configs: tuple[str, ...] = (),
    is_expected: bool = False,
) -> Failure:
    """The failure for an exception."""
    text = str(error) if is_expected else "".join(traceback.format_exception_only(type(error), error))
    line = text.split("\n")[0][:1000]
    return Failure(kind, name, state, line, _place(error), is_plan, part, is_expected, configs)


def _place(error: Exception) -> str:
    """The innermost place in the traceback, which may be a note if a memo table kept the exception."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    noted = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
    places = [line.strip().removeprefix("File ") for line in noted if line.startswith("  File ")]
    if places:
        file, _, rest = places[-1].partition(",")
        return f"{file.strip(chr(34)).rpartition('/')[2]},{rest}"
    return "".join(f"{f.filename.rpartition('/')[2]}, line {f.lineno}, in {f.name}" for f in frames)


class Failures:
    """The register of all failures that stand. State: who has which, and the total."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        """Failures since the start, by kind; each counts once, however long it lasts."""
        self._standing: Counter[Failure] = Counter()
        """The number of owners that have each failure."""
        self._causes: Counter[Hashable] = Counter()
        """The number of different failures that stand, by cause."""
        self._owned: dict[OwnFailures, None] = {}
        """The owners with failures."""

    def __repr__(self) -> str:
        return f"<Failures {len(self._standing)} standing>"

    def standing(self) -> Iterator[tuple[object, Failure]]:
        """The failures with their owners. Costs the number of failures, not of resources."""
        for own in list(self._owned):
            for failure in own:
                yield own.owner, failure

    def _enter(self, failure: Failure, error: Exception) -> None:
        self.total[failure.kind] += 1
        self._standing[failure] += 1
        if self._standing[failure] == 1:
            self._causes[failure.cause] += 1
            self._log(failure, error, self._causes[failure.cause])

    def _leave(self, failure: Failure) -> None:
        self._standing[failure] -= 1
        if not self._standing[failure]:
            del self._standing[failure]
            self._causes[failure.cause] -= 1
            if not self._causes[failure.cause]:
                del self._causes[failure.cause]

    def _log(self, failure: Failure, error: Exception, number: int) -> None:
        """Log the first failures of a cause, the very first one with its traceback."""
        log = _LOGS.get(failure.kind, _envoy_log)
        if failure.is_expected:
            if number == 1:
                event = f"outage: {_EVENTS[failure.state]}"
                log.warning(event, type=failure.kind, name=failure.name, reason=failure.error)
            return
        fields: dict[str, object] = {"type": failure.kind, "name": failure.name, "error": failure.error}
        if failure.configs:
            fields["configs"] = list(failure.configs)
        if number == 1:
            fields["exc_info"] = error
        if number <= LOGGED_OF_A_CAUSE:
            log.error(f"internal error: {_EVENTS[failure.state]}", place=failure.place, **fields)
        elif number == LOGGED_OF_A_CAUSE + 1:
            log.error("internal error: more of the same cause; see /debug/rejections", place=failure.place)


_EVENTS = {
    Condition.STALE: "something stays as it was",
    Condition.MISSING: "something is missing",
    Condition.INCOMPLETE: "something is served without an optional part",
}


class OwnFailures:
    """The failures of one owner: a resource set, a proxy, the World. State: those that stand, by its own key."""

    def __init__(self, register: Failures, owner: object = None) -> None:
        self.owner = owner
        self._register = register
        self._standing: dict[Hashable, Failure] = {}

    def __repr__(self) -> str:
        return f"<OwnFailures {len(self)} of {self.owner!r}>"

    def __len__(self) -> int:
        return len(self._standing)

    def __iter__(self) -> Iterator[Failure]:
        return iter(list(self._standing.values()))

    def __contains__(self, key: object) -> bool:
        return key in self._standing

    def put(self, key: Hashable, failure: Failure, error: Exception) -> None:
        """Note a failure. It is news, and so logged and counted, unless the same one stands."""
        before = self._standing.get(key)
        if before == failure:
            return
        if before is not None:
            failure = attrs.evolve(failure, since=before.since)
        self._standing[key] = failure
        self._register._owned[self] = None
        self._register._enter(failure, error)
        if before is not None:
            self._register._leave(before)

    @contextmanager
    def contained(self, key: Hashable, kind: str, name: str) -> Iterator[None]:
        """A block whose exception ends there, and stands until the block works; what it makes stays as it was."""
        try:
            yield
        except Exception as error:
            self.put(key, failure_of(error, kind, name, Condition.STALE), error)
        else:
            self.pop(key)

    def pop(self, key: Hashable) -> None:
        """It works, or is not needed any more."""
        if key in self._standing:
            self._register._leave(self._standing.pop(key))
            if not self._standing:
                del self._register._owned[self]

    def retain(self, keys: Container[Hashable]) -> None:
        """All others work, or are not needed any more."""
        for key in [key for key in self._standing if key not in keys]:
            self.pop(key)

    def clear(self) -> None:
        self.retain(())
