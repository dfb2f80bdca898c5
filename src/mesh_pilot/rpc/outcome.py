"""Which status a call ends with."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

__all__ = ["OK", "Outcome", "outcome_of"]


@frozen
class Outcome:
    """The end of a call."""

    status: Status
    message: str | None = None
    expected: bool = True
    """False for an error of ours, which belongs in the log with its traceback."""


OK = Outcome(Status.OK)


def outcome_of(error: Exception) -> Outcome:
    """The status for what a handler raised; nurseries wrap errors into groups, whose members count."""
    errors = list(_leaves(error))
    unexpected = [each for each in errors if not isinstance(each, GRPCError | StreamTerminatedError)]
    if unexpected:
        return Outcome(Status.INTERNAL, "internal error of the server", expected=False)
    for each in errors:
        if isinstance(each, GRPCError):
            return Outcome(each.status, each.message)
    return Outcome(Status.CANCELLED, "the stream is gone")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
