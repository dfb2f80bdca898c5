"""Flags of ``mesh-pilot discovery`` about what outlives a restart, and the folder that they and the commands mean."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import platformdirs
from click.core import ParameterSource

from mesh_pilot.cli.options import duration

if TYPE_CHECKING:
    from mesh_pilot.state.settings import StateSettings

_PATH = click.Path(path_type=Path)

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--state-dir",
        {
            "type": _PATH,
            "help": "Folder of what outlives a restart (docs/state.md).  [default: the system's, such as"
            " /var/lib/mesh-pilot]",
        },
    ),
    ("--no-state", {"is_flag": True, "help": "Forget everything at the end, and find nothing at the start."}),
    (
        "--state-max-age",
        {
            "multiple": True,
            "metavar": "[SOURCE=]DURATION",
            "help": "Do not use older pictures of sources; repeatable.  [default: any age]",
        },
    ),
    (
        "--state-key-file",
        {"type": _PATH, "help": "File with the key that private keys are kept encrypted with.  [default: not kept]"},
    ),
)
"""Each flag with what click takes of it."""


def default_folder(environment: Mapping[str, str]) -> Path:
    """The folder of this user: that of the systemd unit, ``/var/lib/mesh-pilot`` of root, else in the home."""
    of_unit = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if of_unit:
        return Path(of_unit)
    return Path("/var/lib/mesh-pilot") if os.geteuid() == 0 else platformdirs.user_state_path("mesh-pilot")


def take_state(options: MutableMapping[str, Any], environment: Mapping[str, str]) -> StateSettings | None:
    """The settings that were given, taken out of the options of the command; None: nothing is kept."""
    from mesh_pilot.state.settings import StateSettings

    folder, key_file = options.pop("state_dir"), options.pop("state_key_file")
    is_off, ages = options.pop("no_state"), options.pop("state_max_age")
    if is_off and folder is not None and not (_is_variable("no_state") or _is_variable("state_dir")):
        raise click.UsageError("--state-dir and --no-state exclude each other")
    if is_off and (folder is None or not _is_variable("no_state")):
        return None
    by_source = {}
    for text in ages:
        source, _, age = text.rpartition("=")
        by_source[source] = duration(age)
    overall = {"max_age": by_source.pop("")} if "" in by_source else {}
    return StateSettings(
        folder=(folder or default_folder(environment)).absolute(), key_file=key_file, max_ages=by_source, **overall
    )


def _is_variable(name: str) -> bool:
    """True for an option that was given as an environment variable: a flag wins over it."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.ENVIRONMENT
