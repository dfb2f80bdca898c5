"""What is found wrong with one object: bounded in number and length, whatever the object holds.

An object of a million mistakes is refused after the first hundred. Values and keys that somebody wrote are quoted in
reasons and paths; what is quoted is shortened, and fit to be logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from mesh_pilot.model.config import Problem, Severity

MAX_ERRORS = 100
"""After so many errors of one object nobody reads on."""

MAX_WARNINGS = 100
"""Warnings of one object that are kept; the others are only counted."""

MAX_REASON = 1000
"""Characters of a reason."""

MAX_PATH = 300
"""Characters of a field's path."""


class TooManyErrorsError(Exception):
    """MAX_ERRORS are found: the object is refused, and reading on would only cost time."""


class Problems(list[Problem]):
    """The problems of one object, in the order in which they were found.

    ``append`` raises TooManyErrorsError at the last error that is kept; warnings never raise.
    """

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        super().__init__()
        self.errors = 0
        """How many of them are errors."""
        for problem in problems:
            self.append(problem)

    def append(self, problem: Problem) -> None:
        super().append(problem)
        if problem.severity is Severity.ERROR:
            self.errors += 1
            if self.errors >= MAX_ERRORS:
                raise TooManyErrorsError

    def take(self, problems: Iterable[Problem]) -> None:
        """Append each."""
        for problem in problems:
            self.append(problem)


def as_reported(problems: Problems, line_of: Callable[[str], int]) -> tuple[Problem, ...]:
    """The problems as they are told: with their lines, shortened, and of warnings not more than anybody reads."""
    told: list[Problem] = []
    warnings = 0
    for problem in problems:
        if problem.severity is Severity.WARNING:
            warnings += 1
            if warnings > MAX_WARNINGS:
                continue
        line = line_of(problem.path)
        path, reason = printable(problem.path, MAX_PATH), printable(problem.reason, MAX_REASON)
        told.append(attrs.evolve(problem, path=path, reason=reason, line=line))
    if problems.errors >= MAX_ERRORS:
        told.append(
            Problem("", f"has {MAX_ERRORS} errors or more; the first {MAX_ERRORS} are listed", line=line_of(""))
        )
    if warnings > MAX_WARNINGS:
        reason = f"has {warnings - MAX_WARNINGS} more warnings; the first {MAX_WARNINGS} are listed"
        told.append(Problem("", reason, Severity.WARNING, line_of("")))
    return tuple(told)


def printable(text: str, limit: int) -> str:
    """Text that can be encoded, at most ``limit`` characters long: its middle is left out."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} ... ({len(text) - 2 * half} characters) ... {text[-half:]}"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
