"""The conditions of a status while it is made: successes, of which some are replaced by errors."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mesh_pilot.istio.gateway_api.values import Json, StatusCondition


@attrs.frozen
class Fault:
    """The reason, in one word and in a sentence, why a condition is not as it should be."""

    reason: str
    message: str

    def and_(self, other: Fault | None) -> Fault:
        """Both faults, under the reason of the first."""
        return self if other is None else Fault(self.reason, f"{self.message}; {other.message}")


class Conditions:
    """Conditions by type."""

    def __init__(self, successes: Iterable[StatusCondition]) -> None:
        self._found = {condition.type: condition for condition in successes}

    @classmethod
    def fine(cls, message: str, *types: str) -> Conditions:
        """Conditions that are true, for no other reason than that nothing is wrong."""
        return cls(StatusCondition(type, True, type, message) for type in types)

    def copy(self) -> Conditions:
        return Conditions(self._found.values())

    def fail(self, type: str, fault: Fault) -> None:
        """Set a condition to the opposite of its success."""
        success = self._found.get(type)
        self._found[type] = StatusCondition(
            type, success is not None and not success.status, fault.reason, fault.message
        )

    def put(self, condition: StatusCondition) -> None:
        self._found[condition.type] = condition

    def __contains__(self, type: str) -> bool:
        return type in self._found

    def to_json(self) -> list[Json]:
        return [condition.to_json() for condition in self.all()]

    def all(self) -> tuple[StatusCondition, ...]:
        """The conditions, by type."""
        return tuple(self._found[type] for type in sorted(self._found))


def human_join(words: list[str]) -> str:
    """``a, b, and c``."""
    if len(words) < 3:
        return " and ".join(words)
    return ", ".join(words[:-1]) + ", and " + words[-1]
