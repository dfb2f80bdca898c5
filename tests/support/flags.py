"""Groups of flags that commands share: what a command line with them comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.testing import CliRunner

from mesh_pilot.cli.lib.setting_options import with_settings

T = TypeVar("T")


def taken(classes: Iterable[type[Any]], take: Callable[[dict[str, Any]], T], arguments: Iterable[str]) -> T:
    """What ``take`` makes of the values of a command that has just the flags of these classes of settings."""
    found: list[T] = []

    @click.command()
    def command(**values: Any) -> None:
        found.append(take(values))

    for each in classes:
        command.params += with_settings(each)(lambda: None).__click_params__  # type: ignore[attr-defined]
    result = CliRunner().invoke(command, [*arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]
