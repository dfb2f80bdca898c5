"""``mesh-pilot man``: man pages, made of the texts that ``--help`` shows.

click-man would make them too, but without examples, and without the lines that a help keeps as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from mesh_pilot.cli.lib.options import examples
from mesh_pilot.model.counts import counted


@click.command(
    "man",
    epilog=examples(
        "mesh-pilot man --into /usr/local/share/man/man1", "mesh-pilot man --into . && man -l ./mesh-pilot.1"
    ),
)
@click.option("--into", type=click.Path(path_type=Path), required=True, help="The folder; it is made if it is missing.")
def command(*, into: Path) -> None:
    """Write a man page for each command: mesh-pilot.1, mesh-pilot-proxy-config.1, mesh-pilot-proxy-config-route.1."""
    from mesh_pilot.cli import cli

    count = 0
    try:
        into.mkdir(parents=True, exist_ok=True)
        for context in contexts(cli):
            name = context.command_path.replace(" ", "-")
            (into / f"{name}.1").write_text(page(context), encoding="utf-8")
            count += 1
    except OSError as error:
        raise click.ClickException(f"{into}: can't be written: {error.strerror}") from None
    click.echo(f"{into}: {counted(count, 'page')}")


def contexts(
    command: click.Command, name: str = "mesh-pilot", parent: click.Context | None = None
) -> Iterator[click.Context]:
    """A context for each command, the outer ones first."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found is not None and not found.hidden:
                yield from contexts(found, each, context)


def page(context: click.Context) -> str:
    """The man page of a command, in roff's macros ``man``."""
    from mesh_pilot import __version__

    command = context.command
    name = context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{_escape(name).upper()}" "1" "" "mesh-pilot {_escape(__version__)}" "mesh-pilot"',
        ".SH NAME",
        f"{_escape(name)} \\- {_escape(_one_line(command.get_short_help_str(200)))}",
        ".SH SYNOPSIS",
        f".B {_escape(context.command_path)}",
        _escape(usage),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
    ]
    flags_of = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    options = [record for each in flags_of if (record := each.get_help_record(context))]
    if options:
        lines.append(".SH OPTIONS")
        for flags, text in options:
            lines += [".TP", f"\\fB{_escape(flags)}\\fR", _line(_one_line(text) or "-")]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found is not None:
                lines += [".TP", f"\\fB{_escape(name)}-{_escape(each)}\\fR(1)"]
                lines.append(_line(_one_line(found.get_short_help_str(200))))
    if command.epilog:
        lines += [".SH EXAMPLES", *_paragraphs(command.epilog.replace("Examples:\n", "", 1))]
    if context.parent is not None:
        parent = context.parent.command_path.replace(" ", "-")
        lines += [".SH SEE ALSO", f"\\fB{_escape(parent)}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help; those that begin with ``\\b`` keep their lines."""
    for part in re.split(r"\n\s*\n", text.replace("\f", "").strip("\n")):
        if not part.strip():
            continue
        kept = part.lstrip("\n").startswith("\b")
        own = [line for line in part.replace("\b", "").splitlines() if line.strip()]
        yield ".PP"
        if kept:
            yield ".nf"
            yield from (_line(line) for line in own)
            yield ".fi"
        else:
            yield _line(" ".join(line.strip() for line in own))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _line(text: str) -> str:
    """A line of text: a dot at its begin is not a macro."""
    return re.sub(r"^(\s*)\.", r"\1\\&.", _escape(text))


_ROFF = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}
"""Characters that roff takes for others, so that examples can be copied."""


def _escape(text: str) -> str:
    found = "".join(_ROFF.get(c, c) for c in text)
    return "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in found)
