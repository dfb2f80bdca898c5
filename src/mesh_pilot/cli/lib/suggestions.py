"""Answers to commands and flags that there are not: what is meant by words of other tools, and what is nearly that."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import click

from mesh_pilot.base.suggestions import asked, nearest
from mesh_pilot.cli.lib.options import SectionedCommand

WORDS: Mapping[str, str] = {
    "check": "analyze",
    "clusters": "remote-clusters",
    "dump": "proxy-config",
    "endpoints": "proxy-config endpoint",
    "explain": "why",
    "install": "proxy install",
    "kube-inject": "inject",
    "lint": "analyze",
    "list": "get",
    "listeners": "proxy-config listener",
    "log": "admin log",
    "logs": "admin log",
    "objects": "get",
    "proxies": "proxy-status",
    "routes": "proxy-config route",
    "run": "discovery",
    "serve": "discovery",
    "services": "get services",
    "start": "discovery",
    "status": "admin status",
    "ui": "dashboard",
    "validate": "analyze",
    "verify": "analyze",
}
"""The commands that are meant by words of other tools."""

LISTED = 10
"""Commands of a group that are named where none is like what was written."""

FLAGS: Mapping[str, str] = {"-v": "--version", "-V": "--version"}
"""The flags that are meant by those of other tools, where a command has them."""


class CommandGroup(click.Group):
    """A group that answers a command that there is not with the one that may be meant."""

    command_class = SectionedCommand
    group_class = type

    words: Mapping[str, str] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            meant = self.words.get(name) or nearest(name, known)
            end = asked(meant) or (f"; there are {', '.join(known)}" if len(known) <= LISTED else "")
            ctx.fail(f"{ctx.command_path} has no command {name!r}{end}")
        return super().resolve_command(ctx, args)


def flag_mistake(error: click.NoSuchOption) -> str:
    """The text of the error for a flag that there is not."""
    name = error.option_name
    known = _flags(error.ctx.command) if error.ctx is not None else ()
    meant = FLAGS.get(name, "")
    return f"there is no flag {name}{asked(meant if meant in known else nearest(name, known))}"


def _flags(command: click.Command) -> Collection[str]:
    found = [flag for each in command.params if isinstance(each, click.Option) for flag in each.opts]
    return [flag for flag in found if flag.startswith("--")]
