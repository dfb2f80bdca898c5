"""Groups of flags that commands share: what a command line with them comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click
from click.testing import CliRunner

T = TypeVar("T")


def taken(
    flags: Iterable[tuple[str, Mapping[str, Any]]], take: Callable[[dict[str, Any]], T], arguments: Iterable[str]
) -> T:
    """What ``take`` makes of the values of a command that has just these flags."""
    found: list[T] = []

    @click.command()
    def command(**values: Any) -> None:
        found.append(take(values))

    for name, attributes in flags:
        command = click.option(name, **attributes)(command)
    result = CliRunner().invoke(command, [*arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]
