"""The values of settings where neither a flag nor a variable of ours gives one: Istio's variables, then the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mesh_pilot.cli.proxy.file import Entry, SettingsFileError, read_file, refuse_unknown
from mesh_pilot.cli.proxy.flags import DEFAULT_FILE
from mesh_pilot.cli.proxy.istio_names import Remark, read_environment

OBJECTS = ("label", "annotation", "metadata", "proxy-config")
"""Settings that are objects in the file. Those of several places are merged, key by key."""

REMARKS = "mesh_pilot.cli.proxy.remarks"
"""Key of click's ``ctx.meta``: remarks for the log, which is not configured yet when they are found."""

_NOT_IN_FILE = ("config", "check")


def defaults_of(ctx: click.Context, named: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Click's ``default_map``: values by the name of the parameter. Raises UsageError, with the place."""
    path = named if named is not None or not DEFAULT_FILE.exists() else DEFAULT_FILE
    try:
        entries = read_file(path) if path is not None else {}
        known = {_name(param): param for param in ctx.command.params if _name(param) not in _NOT_IN_FILE}
        for name, entry in entries.items():
            refuse_unknown(name, entry.place, known)
        found = {name: _value(ctx, known[name], entry) for name, entry in entries.items()}
    except SettingsFileError as error:
        raise click.UsageError(str(error)) from None
    remarks = _put_over(ctx, found, known, environ)
    ctx.meta[REMARKS] = remarks
    return {str(known[name].name): value for name, value in found.items()}


def _put_over(
    ctx: click.Context, found: dict[str, Any], known: Mapping[str, click.Parameter], environ: Mapping[str, str]
) -> tuple[Remark, ...]:
    """Put Istio's variables over the settings of the file."""
    istio = read_environment(environ)
    remarks = list(istio.remarks)
    for name, (variable, text) in istio.settings.items():
        try:
            known[name].type_cast_value(ctx, text)
        except click.BadParameter as error:
            remarks.append(Remark("variable of istio is refused", {"variable": variable, "reason": error.message}))
        else:
            found[name] = text
    for name, values in (("label", istio.labels), ("metadata", istio.metadata)):
        if values:
            found[name] = list({**dict(found.get(name, ())), **values}.items())
    if istio.proxy_config:
        from mesh_pilot.cli.proxy.values import proxy_config

        try:
            found["proxy-config"] = {**found.get("proxy-config", {}), **proxy_config(istio.proxy_config)}
        except click.BadParameter as error:
            raise click.UsageError(f"PROXY_CONFIG: {error.message}") from None
    return tuple(remarks)


def _name(param: click.Parameter) -> str:
    return param.opts[0].removeprefix("--")


def _value(ctx: click.Context, param: click.Parameter, entry: Entry) -> Any:
    """The value of an entry in the form that click takes. Raises SettingsFileError."""
    name, value = _name(param), entry.value
    if name in OBJECTS:
        if not isinstance(value, Mapping):
            raise SettingsFileError(f"{entry.place}: {name} is an object: write its keys below it, each on a line")
        if name == "proxy-config":
            return dict(value)
        if name != "metadata":
            _refuse_objects(name, value, entry)
        return [(str(key), one if name == "metadata" else str(one)) for key, one in value.items()]
    if isinstance(value, list) and not param.multiple:
        raise SettingsFileError(f"{entry.place}: {name} has one value, not a list")
    texts = [_text(name, one, entry) for one in (value if isinstance(value, list) else [value])]
    try:
        for text in texts:
            param.type(text, param, ctx)
    except click.BadParameter as error:
        raise SettingsFileError(f"{entry.place}: {name}: {error.message}") from None
    return texts if param.multiple else texts[0]


def _refuse_objects(name: str, value: Mapping[Any, Any], entry: Entry) -> None:
    for key, one in value.items():
        if one is None or isinstance(one, (list, dict)):
            raise SettingsFileError(f"{entry.places.get(str(key), entry.place)}: {name} {key} must be a text")


def _text(name: str, value: object, entry: Entry) -> Any:
    if value is None or isinstance(value, (list, dict)):
        raise SettingsFileError(f"{entry.place}: {name} has no value: write one, or remove the line")
    return value if isinstance(value, bool) else str(value)
