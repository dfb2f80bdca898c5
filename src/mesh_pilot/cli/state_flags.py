"""Flags of ``mesh-pilot discovery`` about what outlives a restart, and the folder that they and the commands mean."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mesh_pilot.cli.options import duration

if TYPE_CHECKING:
    from mesh_pilot.safety.state.settings import StateSettings

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
    (
        "--history-revisions",
        {"type": click.IntRange(min=0), "default": 1000, "help": "Most revisions kept (docs/history.md); 0: none."},
    ),
    ("--history-age", {"type": duration, "default": "168h", "help": "Do not keep older revisions."}),
)
"""Each flag with what click takes of it."""

CA = "ca"
"""The folder of the CA in that of the state, where no other is named; join tokens are in there."""


def default_folder(environment: Mapping[str, str]) -> Path:
    """The folder of this user: that of the systemd unit, ``/var/lib/mesh-pilot`` of root, else in the home."""
    of_unit = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if of_unit:
        return Path(of_unit)
    if os.geteuid() == 0:
        return Path("/var/lib/mesh-pilot")
    from platformdirs import user_state_path

    return user_state_path("mesh-pilot")


def take_state(options: MutableMapping[str, Any], environment: Mapping[str, str]) -> StateSettings | None:
    """The settings that were given, taken out of the options of the command; None: nothing is kept."""
    from mesh_pilot.safety.state.settings import HistoryBounds, StateSettings

    folder, key_file = options.pop("state_dir"), options.pop("state_key_file")
    history = HistoryBounds(revisions=options.pop("history_revisions"), seconds=options.pop("history_age"))
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
        folder=(folder or default_folder(environment)).absolute(),
        key_file=key_file,
        max_ages=by_source,
        history=history,
        **overall,
    )


def usable(state: StateSettings | None, environment: Mapping[str, str]) -> StateSettings | None:
    """The settings, with the folder made; None, with a log line, if the folder that nobody named cannot be used."""
    if state is None:
        return None
    try:
        state.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = "" if os.access(state.folder, os.W_OK | os.X_OK) else "it cannot be written"
    except OSError as error:
        reason = error.strerror or str(error)
    if not reason or state.folder != default_folder(environment).absolute():
        return state
    import structlog

    structlog.get_logger(scope="state").warning(
        "nothing is kept over a restart; name a folder with --state-dir", folder=str(state.folder), reason=reason
    )
    return None


def ca_folder(state: StateSettings | None, *, is_replica: bool = False) -> Path | None:
    """The folder of the CA, where no other is named; None if it cannot be there: the root is for this run.

    Replicas (``is_replica``) would need the same, which is worth a log line.
    """
    if is_replica:
        import structlog

        structlog.get_logger(scope="security").warning(
            "this replica has a CA of its own; name one for all replicas with --ca-dir, --ca-consul-key or --vault-addr"
        )
    if state is None:
        return None
    folder = state.folder / CA
    return folder if folder.is_dir() or os.access(state.folder, os.W_OK | os.X_OK) else None


def ca_folder_of_plane(state_dir: Path | None) -> Path | None:
    """The same for commands beside the control plane; None if it has no state on this machine."""
    if state_dir is None and os.environ.get("MESH_PILOT_NO_STATE"):
        return None
    folder = (state_dir or default_folder(os.environ)).absolute()
    return folder / CA if folder.is_dir() else None


def _is_variable(name: str) -> bool:
    """True for an option that was given as an environment variable: a flag wins over it."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.ENVIRONMENT
