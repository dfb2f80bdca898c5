"""``python -m tools.dump_flags``: every command's flags as JSON, so that two revisions can be compared.

Of each flag: names, variables, default, type with its range or choices, whether it repeats, and the help.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from mesh_pilot.cli import cli
from mesh_pilot.cli.lib.man import contexts


def flags_of(command: click.Command) -> Iterator[dict[str, Any]]:
    """What a command says of each of its parameters, sorted by name."""
    for param in sorted(command.params, key=lambda param: param.opts[0]):
        kind: Any = param.type
        found = {
            "names": [*param.opts, *param.secondary_opts],
            "variable": param.envvar,
            "default": repr(param.default),
            "type": kind.name,
            "repeats": param.multiple or type(param).__name__ == "ListOption" or getattr(param, "is_list", False),
            "required": param.required,
        }
        if isinstance(kind, click.Choice):
            found["choices"] = [*kind.choices]
        if isinstance(kind, click.IntRange | click.FloatRange):
            found["range"] = [kind.min, kind.max, kind.min_open, kind.max_open]
        if isinstance(param, click.Option):
            found |= {"help": param.help, "metavar": param.metavar, "is_flag": param.is_flag, "hidden": param.hidden}
            found["shows_default"] = param.show_default
        yield found


def main() -> None:
    print(json.dumps({context.command_path: [*flags_of(context.command)] for context in contexts(cli)}, indent=1))


if __name__ == "__main__":
    main()
