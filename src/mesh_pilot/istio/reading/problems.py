"""The problems of one object, bounded in number and length.

An object with a million mistakes is refused after the first hundred. Reasons and paths quote what the user wrote; they
are shortened and made printable before they are logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from mesh_pilot.model.config import Problem, Severity

MAX_ERRORS = 100
"""Errors of one object after which reading stops."""

MAX_WARNINGS = 100
"""Warnings of one object that are listed; further ones are counted."""

MAX_REASON = 1000
"""Characters of a reason."""

MAX_PATH = 300
"""Characters of a field's path."""


class TooManyErrorsError(Exception):
    """MAX_ERRORS are reached: the object is refused without reading the rest."""


class Problems(list[Problem]):
    """The problems of one object, in the order found.

    ``append`` raises TooManyErrorsError when MAX_ERRORS is reached; warnings never raise.
    """

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        super().__init__()
        self.errors = 0
        """Number of errors among them."""
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
    """The problems for logs and pages: with lines, shortened, and at most MAX_WARNINGS warnings."""
    reported: list[Problem] = []
    warnings = 0
    for problem in problems:
        if problem.severity is Severity.WARNING:
            warnings += 1
            if warnings > MAX_WARNINGS:
                continue
        line = line_of(problem.path)
        path, reason = printable(problem.path, MAX_PATH), printable(problem.reason, MAX_REASON)
        reported.append(attrs.evolve(problem, path=path, reason=reason, line=line))
    if problems.errors >= MAX_ERRORS:
        reported.append(
            Problem("", f"has {MAX_ERRORS} errors or more; the first {MAX_ERRORS} are listed", line=line_of(""))
        )
    if warnings > MAX_WARNINGS:
        reason = f"has {warnings - MAX_WARNINGS} more warnings; the first {MAX_WARNINGS} are listed"
        reported.append(Problem("", reason, Severity.WARNING, line_of("")))
    return tuple(reported)


def printable(text: str, limit: int) -> str:
    """Text as encodable Unicode of about ``limit`` characters at most; the middle of a longer one is left out."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} ... ({len(text) - 2 * half} characters) ... {text[-half:]}"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
