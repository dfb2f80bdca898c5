"""``mesh-pilot completion``: the script that lets a shell complete commands and flags."""

from __future__ import annotations

import click

from mesh_pilot.cli.lib.options import examples

SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    epilog=examples(
        'eval "$(mesh-pilot completion bash)"',
        "mesh-pilot completion bash > /etc/bash_completion.d/mesh-pilot",
        "mesh-pilot completion fish > ~/.config/fish/completions/mesh-pilot.fish",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(*, shell: str) -> None:
    """Print the script that completes mesh-pilot's commands and flags in SHELL."""
    from click.shell_completion import get_completion_class

    from mesh_pilot.cli import cli

    found = get_completion_class(shell)
    assert found is not None
    made = found(cli, {}, "mesh-pilot", "_MESH_PILOT_COMPLETE")
    click.echo(made.source_template % made.source_vars())
