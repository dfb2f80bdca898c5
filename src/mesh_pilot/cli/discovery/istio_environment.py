"""Environment variables and flags of istiod: which are honoured, and what replaces the others.

The names are data: ``istio_environment.yaml``. A flag of ours, or its own variable, wins over a variable of Istio,
and that over our settings file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import click

PREFIXES = ("PILOT_", "ISTIOD_")

_LIVES = {"DEFAULT_WORKLOAD_CERT_TTL": "workload_cert_ttl", "MAX_WORKLOAD_CERT_TTL": "max_workload_cert_ttl"}


@attrs.frozen
class IstioNames:
    """The content of the data file, which says what each is."""

    honoured: Mapping[str, str]
    unless_zero: frozenset[str]
    answered: Mapping[str, str]
    flags: Mapping[str, str]
    answered_flags: Mapping[str, str]


@cache
def istio_names() -> IstioNames:
    import yaml

    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    data = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return IstioNames(
        honoured=data["honoured"],
        unless_zero=frozenset(data["unless_zero"]),
        answered={name: each["reason"] for each in data["answered"] for name in each["variables"]},
        flags=data["flags"],
        answered_flags=data["answered_flags"],
    )


def flag_hint(name: str) -> str:
    """The text that helps with a flag of istiod; empty for any other flag."""
    name = name.partition("=")[0]
    names = istio_names()
    if answer := names.answered_flags.get(name):
        return f"{name} is a flag of istiod; here it has no counterpart: {answer}"
    if name not in names.flags:
        return ""
    ours = names.flags[name]
    return (
        f"{name} is a flag of istiod; here it is {ours}"
        if ours
        else f"{name} is a flag of istiod; it is not needed here"
    )


_HONOURED = "variable of istio is honoured"


@attrs.frozen
class Line:
    """A line for the log."""

    event: str
    fields: Mapping[str, object]
    is_warning: bool = False

    @property
    def is_honoured(self) -> bool:
        return self.event == _HONOURED


def take_istio_environment(
    settings: MutableMapping[str, Any],
    environ: Mapping[str, str],
    is_default: Callable[[str], bool],
    read: Callable[[str, str], object],
) -> list[Line]:
    """Put the values of Istio's variables in place of defaults in ``settings``, and give the lines that say so.

    ``is_default`` is true for the name of a setting that was not given; ``read`` converts a string as its flag
    does, and raises click.BadParameter. An empty variable is as one that is not set. Raises UsageError for lives of
    certificates that contradict each other: neither is a safe choice.
    """
    before = tuple(map(settings.get, _LIVES.values()))
    lines = list(_taken(settings, {name: text for name, text in environ.items() if text}, is_default, read))
    after = life, longest = tuple(map(settings.get, _LIVES.values()))
    if after != before and life is not None and longest is not None and not 0 < life <= longest:
        found = ", ".join(f"{name}={environ[name]}" for name in _LIVES if environ.get(name))
        raise click.UsageError(
            f"{found} in the environment: --workload-cert-ttl ({life:g} s) must be over 0 and at most"
            f" --max-workload-cert-ttl ({longest:g} s): change the variables, or give both flags"
        )
    return lines


def log_lines(lines: Iterable[Line]) -> None:
    """Write the lines to the log."""
    import structlog

    log = structlog.get_logger(scope="bootstrap")
    for line in lines:
        (log.warning if line.is_warning else log.info)(line.event, **line.fields)


def _taken(
    settings: MutableMapping[str, Any],
    environ: Mapping[str, str],
    is_default: Callable[[str], bool],
    read: Callable[[str, str], object],
) -> Iterator[Line]:
    names, unknown = istio_names(), []
    for name in sorted(environ):
        if name in names.honoured:
            yield _honour(name, environ[name], settings, is_default, read)
        elif name in names.answered:
            yield Line("variable of istio has no effect", {"variable": name, "reason": names.answered[name]})
        elif name.startswith(PREFIXES):
            unknown.append(name)
    if unknown:
        yield Line("variables of istio are unknown", {"variables": unknown, "effect": "none"}, is_warning=True)


def _honour(
    name: str,
    text: str,
    settings: MutableMapping[str, Any],
    is_default: Callable[[str], bool],
    read: Callable[[str, str], object],
) -> Line:
    flag = istio_names().honoured[name]
    setting = flag.removeprefix("--").replace("-", "_")
    fields: dict[str, object] = {"variable": name, "value": text, "flag": flag}
    if not is_default(setting):
        return Line("variable of istio has no effect", {**fields, "reason": f"{flag} is given"})
    try:
        value = read(setting, text)
    except click.BadParameter as error:
        kept = f"{error.message}; the default of {flag} stays"
        return Line("variable of istio is refused", {**fields, "reason": kept}, is_warning=True)
    if not value and name in istio_names().unless_zero:
        return Line("variable of istio has no effect", {**fields, "reason": "0 is the default here as well"})
    settings[setting] = value
    return Line(_HONOURED, fields)
