"""The values of settings where neither a flag nor a variable of ours gives one.

From Istio's variables, else from the labels and annotations of the Pod, else from the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mesh_pilot.base.suggestions import did_you_mean
from mesh_pilot.cli.lib.options import one_line
from mesh_pilot.cli.lib.settings_file import (
    Entry,
    SettingsFileError,
    key_of,
    read_file,
    refuse_unknown,
    value_of,
)
from mesh_pilot.cli.proxy.flags import DEFAULT_FILE
from mesh_pilot.cli.proxy.istio_names import Remark, read_environment
from mesh_pilot.cli.proxy.pod_info import pod_annotations, pod_labels
from mesh_pilot.cli.proxy.values import read_object

MERGED = ("label", "annotation", "metadata", "proxy-config")
"""Settings that are objects in the file. Those of several places are merged, key by key."""
OBJECTS = ("probe", "app-probers", "scrape", "consul-service")
"""Other settings that may be objects there."""

REMARKS = "mesh_pilot.cli.proxy.remarks"
"""Key of click's ``ctx.meta``: remarks for the log, which is not configured yet when they are found."""

_NOT_IN_FILE = ("config", "check")


def defaults_of(ctx: click.Context, named: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Click's ``default_map``: values by the name of the parameter. Raises UsageError, with the place."""
    path = named if named is not None or not DEFAULT_FILE.exists() else DEFAULT_FILE
    known = {key_of(param): param for param in ctx.command.params if key_of(param) not in _NOT_IN_FILE}
    remarks: list[Remark] = []
    with one_line(SettingsFileError, as_=click.UsageError):
        entries = read_file(path) if path is not None else {}
        for name, entry in entries.items():
            refuse_unknown(name, entry.place, known)
        found = {name: _value(ctx, known[name], entry) for name, entry in entries.items()}
    _put_over(ctx, found, known, environ, remarks)
    ctx.meta[REMARKS] = remarks
    return {str(known[name].name): value for name, value in found.items()}


def proxy_config_of(place: str, data: Mapping[str, Any], remarks: list[Remark]) -> dict[str, Any]:
    """The fields of a ProxyConfig of this machine; those that are unknown are remarked on.

    Raises UsageError for a value that is wrong.
    """
    from mesh_pilot.agent.bootstrap.proxy_config import FieldProblem, read_proxy_config

    problems: list[FieldProblem] = []
    found = read_proxy_config(data, problems)
    for problem in problems:
        if not problem.is_unknown:
            raise click.UsageError(f"{place}: {problem.path}: {problem.reason}")
        fields = {"field": problem.path, "place": place}
        hint = did_you_mean(problem.path.rpartition(".")[2], problem.known).removeprefix("; ")
        remarks.append(Remark("field of the proxy config is unknown", {**fields, **({"hint": hint} if hint else {})}))
    return found


def _put_over(
    ctx: click.Context,
    found: dict[str, Any],
    known: Mapping[str, click.Parameter],
    environ: Mapping[str, str],
    remarks: list[Remark],
) -> None:
    """Put Istio's variables, and below them what the Pod has, over the settings of the file."""
    istio = read_environment(environ)
    remarks += istio.remarks
    for name, (variable, text) in istio.settings.items():
        try:
            known[name].type_cast_value(ctx, text)
        except click.BadParameter as error:
            remarks.append(Remark("variable of istio is refused", {"variable": variable, "reason": error.message}))
        else:
            found[name] = text
    labels = {**pod_labels(), **istio.labels}
    for name, values in (("label", labels), ("annotation", pod_annotations()), ("metadata", istio.metadata)):
        if values:
            found[name] = list({**dict(found.get(name, ())), **values}.items())
    if istio.proxy_config:
        try:
            given = read_object(istio.proxy_config)
        except click.BadParameter as error:
            raise click.UsageError(f"PROXY_CONFIG: {error.message}") from None
        from mesh_pilot.agent.bootstrap.proxy_config import overlay

        below = found.get("proxy-config", {})
        found["proxy-config"] = overlay(below, proxy_config_of("PROXY_CONFIG", given, remarks))


def _value(ctx: click.Context, param: click.Parameter, entry: Entry) -> Any:
    """The value of an entry in the form that click takes. Raises SettingsFileError."""
    name, value = key_of(param), entry.value
    if name in MERGED:
        if not isinstance(value, Mapping):
            raise SettingsFileError(f"{entry.place}: {name} is an object: write its keys below it, each on a line")
        if name == "proxy-config":
            return _read_proxy_config(value, entry)
        if name != "metadata":
            _refuse_objects(name, value, entry)
        return [(str(key), one if name == "metadata" else _as_text(one)) for key, one in value.items()]
    if name in OBJECTS and isinstance(value, Mapping | list):
        try:
            param.type(value, param, ctx)
        except click.BadParameter as error:
            raise SettingsFileError(f"{entry.place}: {name}: {error.message}") from None
        return value
    return value_of(ctx, param, entry)


def _read_proxy_config(data: Mapping[str, Any], entry: Entry) -> dict[str, Any]:
    """The fields by their names in YAML. Raises SettingsFileError for one that is wrong, with its line."""
    from mesh_pilot.agent.bootstrap.proxy_config import FieldProblem, read_proxy_config

    problems: list[FieldProblem] = []
    found = read_proxy_config(data, problems)
    for problem in problems:
        place = entry.places.get(problem.path, entry.place)
        if problem.is_unknown:
            refuse_unknown(problem.path.rpartition(".")[2], place, problem.known, "field of a ProxyConfig")
        raise SettingsFileError(f"{place}: proxy-config: {problem.path}: {problem.reason}")
    return found


def _refuse_objects(name: str, value: Mapping[Any, Any], entry: Entry) -> None:
    for key, one in value.items():
        if one is None or isinstance(one, (list, dict)):
            raise SettingsFileError(f"{entry.places.get(str(key), entry.place)}: {name} {key} must be a string")


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
