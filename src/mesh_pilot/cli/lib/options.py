"""Types of flags that several commands use, and a command whose help has sections.

Their functions import what they need when they are called, so that ``--help`` and completion stay quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click


class FlagType(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of click only
    """A type of flag from a function that parses its text; the function's name is shown in the help.

    For completion click converts defaults too, although they are not used; they stay text.
    """

    def __init__(self, read: Callable[[str], Any], name: str = "") -> None:
        self.name = name or read.__name__.replace("_", "-")
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if ctx is not None and ctx.resilient_parsing:
            return value
        try:
            return self.read(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None


class SettingOption(click.Option):
    """A flag that knows its section in the help, whether every help shows it, and what was written for it."""

    def __init__(self, *args: Any, section: str = "", is_common: bool = True, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section
        self.is_common = is_common

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        ctx.meta.setdefault(WRITTEN, {})[self.name] = value
        return super().process_value(ctx, value)


class ListOption(SettingOption):
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


WRITTEN = "mesh_pilot.cli.written"
"""Key of click's ``ctx.meta``: the values of flags as they were written, by the names of parameters."""


@contextmanager
def one_line(
    *errors: type[Exception], as_: Callable[[str], click.ClickException] = click.ClickException
) -> Iterator[None]:
    """Raise errors of the rooms below, whose text is for people, as click's: one line, and no traceback."""
    try:
        yield
    except errors as error:
        raise as_(str(error)) from None


def variable_of(spelled: str, prefix: str = "MESH_PILOT_") -> str:
    """The variable of a flag: ``MESH_PILOT_CA_DIR`` of ``--ca-dir``."""
    return prefix + spelled.replace("/", " ").split()[0].removeprefix("--").upper().replace("-", "_")


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
        raise click.BadParameter(f"{text!r} is not an IP address, such as 10.1.1.1 or fd00::1") from None
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


output_option = click.option(
    "--output", "-o", type=click.Choice(["text", "json", "yaml"]), default="text", help="How to print it."
)
"""The option of commands that print text, or the same as data."""


days_option = click.option(
    "--days", type=click.IntRange(1, 31), default=7, metavar="N", help="Days of traffic to look at.", show_default=True
)
"""The option of commands that look at the traffic of the last days."""


def examples(*lines: str) -> str:
    """The epilog of a command's help: each line an example, as it would be typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


OTHER = "Other options"
PLANE = "Control plane"
"""The section of the flags that say which control plane is meant, and how it is reached: the last one."""


class SectionedCommand(click.Command):
    """A command whose help shows its flags by section. Where some are not common, ``--help-all`` shows those too.

    ``hint`` gives the text of the error for a flag that does not exist; empty for click's own.
    """

    def __init__(self, *args: Any, hint: Callable[[str], str] = lambda _: "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hint = hint
        if not all(map(is_common, self.params)):
            text = "Show all flags and exit."
            more: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _help_all}
            self.params.append(click.Option(["--help-all"], help=text, **more))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if hint := self._hint(error.option_name):
                raise click.UsageError(hint, ctx) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        others: list[tuple[str, str]] = []
        left_out = 0
        for param in self.get_params(ctx):
            if not is_common(param) and _EVERY_FLAG not in ctx.meta:
                left_out += 1
            elif isinstance(param, click.Option) and (row := param.get_help_record(ctx)) is not None:
                section = section_of(param)
                (others if section == OTHER else rows.setdefault(section, [])).append(row)
        planes = {PLANE: rows.pop(PLANE)} if PLANE in rows else {}
        for title, records in (*rows.items(), (OTHER if rows else "Options", others), *planes.items()):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more flags, which few need: {ctx.command_path} --help-all")


_EVERY_FLAG = "mesh_pilot.cli.every_flag"
"""Key of click's ``ctx.meta``, in which it is where the help shows all flags."""


def _help_all(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        ctx.meta[_EVERY_FLAG] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def is_common(param: click.Parameter) -> bool:
    """True for a flag that every help shows."""
    return not isinstance(param, SettingOption) or param.is_common


def section_of(param: click.Parameter) -> str:
    """The section of the help that a flag is in."""
    return (param.section if isinstance(param, SettingOption) else "") or OTHER
