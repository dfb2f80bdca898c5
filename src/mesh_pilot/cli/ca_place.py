"""The place of the CA that ``mesh-pilot ca`` works on: a folder, or an entry of Consul's KV store.

The flags and variables are those of ``mesh-pilot discovery``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.ca_store_flags import FLAGS as STORE_FLAGS
from mesh_pilot.cli.ca_store_flags import ca_store
from mesh_pilot.cli.registries.consul import FLAGS as CONSUL_FLAGS
from mesh_pilot.cli.registries.consul import consul_agent
from mesh_pilot.cli.state_flags import ca_folder_of_plane

if TYPE_CHECKING:
    from mesh_pilot.identity.authority.store import MaterialStore

_AGENT_FLAGS = (
    "--consul-server-url",
    "--consul-datacenter",
    "--consul-token",
    "--consul-token-file",
    "--consul-ca-file",
    "--consul-client-cert",
    "--consul-client-key",
    "--consul-tls-server-name",
)


def _flags() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "--ca-dir", {"type": click.Path(path_type=Path), "help": "Folder of the CA, as given to discovery."}
    yield "--state-dir", {"type": click.Path(path_type=Path), "help": "Folder of its state, which has the CA's."}
    yield from STORE_FLAGS
    yield from ((name, attributes) for name, attributes in CONSUL_FLAGS if name in _AGENT_FLAGS)


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags, and the store that they name as ``store``."""

    @wraps(command)
    def run(**options: Any) -> None:
        store = _store(options)
        own = {name: value for name, value in options.items() if name not in taken}
        command(store=store, **own)

    taken = {name.removeprefix("--").replace("-", "_") for name, _ in _flags()}
    for name, attributes in reversed(list(_flags())):
        variable = "MESH_PILOT_" + name.removeprefix("--").upper().replace("-", "_")
        run = click.option(name, envvar=variable, **attributes)(run)
    return run


def _store(options: Mapping[str, Any]) -> MaterialStore:
    """The store that the options name. Raises UsageError."""
    folder, key = options["ca_dir"], options["ca_consul_key"]
    if folder is not None and key:
        raise click.UsageError("--ca-dir and --ca-consul-key exclude each other: the CA is in one place")
    if folder is None and not key:
        folder = ca_folder_of_plane(options["state_dir"])
    if folder is not None:
        from mesh_pilot.identity.authority.folder import FolderStore

        return FolderStore(folder)
    if not key:
        raise click.UsageError("say where the CA is: --ca-dir, --state-dir, or --ca-consul-key")
    from mesh_pilot.consul.identity.ca_store import ConsulStore

    url = next(iter(options["consul_server_url"]), "") or os.environ.get("CONSUL_HTTP_ADDR", "")
    if not url:
        raise click.UsageError("--ca-consul-key needs an agent to ask: --consul-server-url")
    agent = consul_agent(options, os.environ, url)
    return ConsulStore(ca_store(options, agent, next(iter(options["consul_datacenter"]), "")))
