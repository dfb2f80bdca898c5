"""Click's options of the settings that classes declare; see ``model.flags``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mesh_pilot.cli.lib.options import FlagType, ListOption, SettingOption, address, duration, variable_of, words
from mesh_pilot.model.flags import Flag, FlagKind, flags_of

F = TypeVar("F", bound=Callable[..., Any])


def option_of(setting: Flag, prefix: str = "MESH_PILOT_") -> SettingOption:
    """Click's option of a setting that a class declares. ``prefix``: of its variable."""
    more: dict[str, Any] = {}
    text = default_text(setting)
    if text is not None:
        more["default"] = text
    elif "/" in setting.spelled:
        more["default"] = None  # else click says False, which somebody may have meant
    if text == "":
        more["show_default"] = False
    return (ListOption if setting.adds_up else SettingOption)(
        setting.spelled.split(),
        type=_type_of(setting),
        is_flag=setting.kind is FlagKind.SWITCH or None,  # False would make a value optional, says click
        multiple=setting.repeats,
        metavar=setting.metavar,
        help=setting.help,
        envvar=variable_of(setting.spelled, prefix),
        section=setting.section,
        is_common=setting.common,
        **more,
    )


def with_settings(settings: type[Any]) -> Callable[[F], F]:
    """A decorator that gives a command the flags of a class of settings."""

    def decorate(command: F) -> F:
        made = [option_of(setting) for setting in flags_of(settings)]
        found = getattr(command, "__click_params__", ())  # click's own, in reverse
        command.__click_params__ = [*found, *reversed(made)]  # type: ignore[attr-defined]
        return command

    return decorate


def default_text(setting: Flag) -> Any:
    """The default as users write it, which the help shows; None where nothing is shown."""
    default = setting.default
    if setting.text is not None:
        return setting.text
    if setting.kind is FlagKind.WORDS:
        return ",".join(default)
    if default is None or default == () or (default is False and "/" not in setting.spelled):
        return None
    if setting.kind is FlagKind.DURATION:
        return duration_text(default if isinstance(default, float) else default.total_seconds())
    return default


def _type_of(setting: Flag) -> Any:
    kind = setting.kind
    match kind:
        case tuple():
            return click.Choice(kind)
        case FlagKind.SWITCH:
            return click.BOOL
        case FlagKind.TEXT:
            return click.STRING
        case FlagKind.INTEGER:
            return click.IntRange(setting.least, setting.most)  # type: ignore[arg-type]
        case FlagKind.NUMBER:
            return click.FloatRange(setting.least, setting.most, max_open=setting.is_below)
        case FlagKind.PATH:
            return click.Path(path_type=Path)
        case FlagKind.DURATION:
            return duration
        case FlagKind.ADDRESS:
            return address
        case FlagKind.WORDS:
            return FlagType(words, "text")
    assert callable(kind)
    return FlagType(kind)


def duration_text(seconds: float) -> str:
    """A duration as the defaults of flags are written: ``24h``, ``2m``, ``10s``, ``100ms``."""
    if seconds and seconds % 3600 == 0:
        return f"{seconds / 3600:g}h"
    if seconds > 60 and seconds % 60 == 0:
        return f"{seconds / 60:g}m"
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"
