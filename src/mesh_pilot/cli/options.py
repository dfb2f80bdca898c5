"""Types of flags that several commands use, and a command whose help has sections.

Their functions import what they need when they are called, so that ``--help`` and completion stay quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click


class FlagType(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of click only
    """A type of flag from a function that parses its text; the function's name is shown in the help.

    For completion click converts defaults too, although they are not used; they stay text.
    """

    def __init__(self, read: Callable[[str], object]) -> None:
        self.name = read.__name__
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if ctx is not None and ctx.resilient_parsing else self._read(value)


class ListOption(click.Option):
    """A flag that takes a list: with commas between, and repeated. Its type reads them joined by commas."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        self.multiple = True  # click's word for "keep every value", here for the command line only
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.multiple = False

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        value, source = super().consume_value(ctx, opts)
        return (",".join(value) if isinstance(value, list) else value), source


def words(text: str) -> tuple[str, ...]:
    """The parts of a list with commas or spaces, without those that are empty."""
    return tuple(text.replace(",", " ").split())


@FlagType
def duration(text: str) -> float:
    """A duration such as ``10s``, ``250ms`` or ``1m30s``, in seconds."""
    from mesh_pilot.istio.meaning.durations import read_duration

    try:
        seconds = read_duration(text).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds < 0:
        raise click.BadParameter(f"{text!r} is negative")
    return seconds


@FlagType
def address(text: str) -> str:
    """``host:port``, ``[::1]:port``, ``:port`` (every interface) or ``unix:///path``, checked and as it was written."""
    from mesh_pilot.net.rpc.errors import AddressError
    from mesh_pilot.net.rpc.net import parse_address

    scheme, separator, rest = text.partition("://")
    if separator and scheme != "unix":
        raise click.BadParameter(f"{text!r} is a URL; write the address alone: {rest.rstrip('/')}")
    try:
        parse_address(text)
    except AddressError as error:
        raise click.BadParameter(str(error)) from None
    return text


@FlagType
def ip_address(text: str) -> str:
    """An IP address, checked and as it was written."""
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no IP address, such as 10.1.1.1 or fd00::1") from None
    return text


@FlagType
def pilot(text: str) -> str:
    """The address of a control plane, or ``ADDRESS@REGION/ZONE``, checked and as it was written."""
    from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
    from mesh_pilot.net.rpc.errors import AddressError

    address.convert(text if text.startswith("unix:") else text.partition("@")[0], None, None)
    try:
        Pilot.parse(text)
    except AddressError as error:
        raise click.BadParameter(str(error)) from None
    return text


@FlagType
def label(text: str) -> tuple[str, str]:
    """``key=value`` as a pair."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not key=value")
    return key, value


def examples(*lines: str) -> str:
    """The epilog of a command's help: each line an example, as it would be typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


OTHER = "Other options"


class SectionedCommand(click.Command):
    """``sections``: titles, each with the flags it shows, by name or as a pattern such as ``--consul-*``.

    ``hint`` gives the text of the error for a flag that does not exist; empty for click's own.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Sequence[str]],
        hint: Callable[[str], str] = lambda _: "",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self._hint = hint

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if hint := self._hint(error.option_name):
                raise click.UsageError(hint, ctx) from None
            raise

    def section_of(self, option: click.Parameter) -> str:
        """The section that a flag belongs to."""
        name = option.opts[0]
        for title, patterns in self.sections.items():
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return title
        return OTHER

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in (*self.sections, OTHER)}
        for param in self.get_params(ctx):
            if (row := param.get_help_record(ctx)) is not None:
                rows[self.section_of(param)].append(row)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
