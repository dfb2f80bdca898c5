"""Help, man pages and completion: every command has examples that it understands, in all three."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mesh_pilot.cli import COMMANDS, GROUPS, cli
from mesh_pilot.cli.lib.command_examples import EXAMPLES
from mesh_pilot.cli.lib.man import contexts, page
from tests.cli.test_command_line import HEAVY

EVERY = [*contexts(cli)]
PATHS = [context.command_path for context in EVERY]
MODULES_OF_ALL = 600
"""Modules that the help of all commands together may load."""


def examples_in(context: click.Context) -> list[str]:
    """The lines of a command's examples."""
    _, _, rest = context.get_help().partition("Examples:\n")
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()]


def calls(line: str) -> Iterator[list[str]]:
    """The arguments of each call of mesh-pilot in a line for a shell."""
    lexer = shlex.shlex(re.sub(r"[\"']?\$\(|\)[\"']?$", " ; ", line), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    words: list[str] | None = None
    for word in [*lexer, ";"]:
        if word == "mesh-pilot" and words is None:
            words = []
        elif word[0] in "();<>|&":
            if words is not None:
                yield words
            words = None
        elif words is not None:
            words.append(word)


def parse(arguments: list[str]) -> None:
    """Read a command line as the program would, without running it. Raises click.UsageError."""
    context = cli.make_context("mesh-pilot", list(arguments))
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("context", EVERY, ids=PATHS)
def test_every_command_has_examples_that_it_understands(context: click.Context) -> None:
    lines = examples_in(context)
    assert lines, "no examples"
    found = [each for line in lines for each in calls(line)]
    assert found
    for arguments in found:
        try:
            parse(arguments)
        except click.exceptions.Exit as end:
            assert end.exit_code == 0, "it is --help"
        except click.BadParameter as error:
            assert "does not exist" in error.message, "a file that an example names"
    named = context.command_path.split()[1:]
    short = [{"pc": "proxy-config", "ps": "proxy-status"}.get(each[0], each[0]) if each else "" for each in found]
    assert not named or named[0] in short, "none of them is of this command"


SCREEN = 40
"""Lines of a help that are read at a glance; a longer one has sections."""


def test_every_command_is_in_one_group() -> None:
    assert list(GROUPS) == ["Start", "Change", "Look", "Secure", "Operate"]
    everything = [name for group in GROUPS.values() for name in group]
    assert everything == [*COMMANDS]
    assert len({*everything}) == len(everything)
    text = EVERY[0].get_help()
    for title, group in GROUPS.items():
        lines = text.partition(f"{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == [*group], "each on a separate line"


@pytest.mark.parametrize("context", EVERY, ids=PATHS)
def test_a_help_fits_a_screen_or_has_sections(context: click.Context) -> None:
    text = context.get_help()
    sections = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert len(text.splitlines()) <= SCREEN or len(sections) > 1


def test_no_metavar_is_the_name_of_a_variable() -> None:
    for context in EVERY:
        for option in context.command.params:
            if isinstance(option, click.Option) and not isinstance(option.type, click.Choice):
                assert "_" not in option.make_metavar(context), f"{context.command_path} {option.opts}"


def test_examples_are_of_commands_that_there_are() -> None:
    assert {f"mesh-pilot {path}".strip() for path in EXAMPLES} <= {*PATHS}


@pytest.mark.process
@pytest.mark.smoke
def test_help_of_all_commands_together_loads_nothing_of_what_they_do() -> None:
    code = f"""
import sys
from mesh_pilot.cli import COMMANDS, GROUPS, cli
from mesh_pilot.cli.lib.man import contexts
for context in contexts(cli):
    context.get_help()
print([name for name in {HEAVY!r} if name in sys.modules], len(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    heavy, _, count = done.stdout.strip().rpartition(" ")
    assert heavy == "[]"
    assert int(count) < MODULES_OF_ALL


@pytest.mark.process
def test_man_pages_have_the_texts_of_the_help_and_are_good_roff(tmp_path: Path) -> None:
    pages = {context.command_path: page(context) for context in EVERY}
    route = pages["mesh-pilot proxy-config route"]
    for part in (
        ".SH NAME\nmesh\\-pilot\\-proxy\\-config\\-route \\- List the routes",
        "\\fB\\-\\-name TEXT\\fR",
        ".SH EXAMPLES",
    ):
        assert part in route
    assert "\\fBmesh\\-pilot\\-proxy\\-config\\fR(1)" in route
    assert "\\(aqweb\\-*\\(aq" in pages["mesh-pilot plan"], "a quote that a shell takes"
    files = []
    for name, text in pages.items():
        assert not [line for line in text.splitlines() if line.startswith("'")]
        files.append(tmp_path / f"{name.replace(' ', '-')}.1")
        files[-1].write_text(text, encoding="utf-8")
    if shutil.which("groff"):
        command = ["groff", "-ww", "-man", "-Tutf8", "-z", *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""


@pytest.mark.parametrize(("shell", "has"), [("bash", "complete -o nosort"), ("zsh", "#compdef"), ("fish", "complete")])
def test_completion_is_a_script_of_the_shell(shell: str, has: str) -> None:
    from click.testing import CliRunner

    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert has in result.output
    assert "_MESH_PILOT_COMPLETE" in result.output
