"""The flag of ``mesh-pilot discovery`` about join tokens, and the folder that it and the commands mean."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mesh_pilot.identity.tokens.join_tokens import JoinTokenSettings

FLAGS = (
    (
        "--token-dir",
        {
            "type": click.Path(path_type=Path),
            "help": "Folder of join tokens (mesh-pilot token).  [default: join-tokens in --ca-dir]",
        },
    ),
)


def take_join_tokens(options: MutableMapping[str, Any]) -> JoinTokenSettings:
    """The settings that were given, taken out of the options of the command."""
    from mesh_pilot.identity.tokens.join_tokens import JoinTokenSettings

    return JoinTokenSettings(options.pop("token_dir"))
