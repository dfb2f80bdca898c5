"""The place of the CA that ``mesh-pilot ca`` works on: a folder, or an entry of Consul's KV store.

The flags and variables are those of ``mesh-pilot discovery``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.lib.consul_agent import CaStoreFlags, ConsulAgentFlags
from mesh_pilot.cli.lib.options import variable_of
from mesh_pilot.cli.lib.setting_options import with_settings
from mesh_pilot.cli.lib.state_folder import ca_folder_of_plane
from mesh_pilot.model.flags import built, flags_of

if TYPE_CHECKING:
    from mesh_pilot.identity.authority.store import MaterialStore

_FOLDERS = (
    ("--ca-dir", "Folder of the CA, as given to discovery."),
    ("--state-dir", "Folder of its state, which has the CA's."),
)


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags, and the store that they name as ``store``."""

    @wraps(command)
    def run(ca_dir: Path | None, state_dir: Path | None, **options: Any) -> None:
        store = _store(ca_dir, state_dir, built(CaStoreFlags, options), built(ConsulAgentFlags, options))
        command(store=store, **{name: value for name, value in options.items() if name not in taken})

    taken = {setting.parameter for each in (CaStoreFlags, ConsulAgentFlags) for setting in flags_of(each)}
    run = with_settings(CaStoreFlags)(with_settings(ConsulAgentFlags)(run))
    for name, text in reversed(_FOLDERS):
        run = click.option(name, type=click.Path(path_type=Path), envvar=variable_of(name), help=text)(run)
    return run


def _store(
    folder: Path | None, state_dir: Path | None, shared: CaStoreFlags, consul: ConsulAgentFlags
) -> MaterialStore:
    """The store that the flags name. Raises UsageError."""
    if folder is not None and shared.ca_consul_key:
        raise click.UsageError("--ca-dir and --ca-consul-key exclude each other: the CA is in one place")
    if folder is None and not shared.ca_consul_key:
        folder = ca_folder_of_plane(state_dir)
    if folder is not None:
        from mesh_pilot.identity.authority.folder import FolderStore

        return FolderStore(folder)
    if not shared.ca_consul_key:
        raise click.UsageError("say where the CA is: --ca-dir, --state-dir, or --ca-consul-key")
    from mesh_pilot.consul.identity.ca_store import ConsulStore

    return ConsulStore(shared.settings(*consul.first(os.environ, "--ca-consul-key")))
