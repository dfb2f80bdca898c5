"""The flags of ``mesh-pilot discovery`` about a CA that replicas share in Consul's KV store."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.registries.consul import consul_datacenters

if TYPE_CHECKING:
    from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings
    from mesh_pilot.consul.source import Agent

_FILE = click.Path(path_type=Path)

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--ca-consul-key",
        {"default": "", "help": "Key of Consul's KV store, at the first agent, that replicas share the CA in."},
    ),
    (
        "--ca-consul-token-file",
        {"type": _FILE, "help": "File with the ACL token for it.  [default: the agent's]"},
    ),
    ("--ca-key-encryption-file", {"type": _FILE, "help": "File with the key that encrypts the CA there."}),
    ("--ca-key-plaintext", {"is_flag": True, "help": "Put the CA's PRIVATE KEY there without encryption."}),
)

_NAMES = tuple(name.removeprefix("--").replace("-", "_") for name, _ in FLAGS)


def take_ca_store(options: MutableMapping[str, Any], environment: Mapping[str, str]) -> ConsulStoreSettings | None:
    """The settings that were given, taken out of the options of the command; those of the agent stay there.

    None without a key. Raises UsageError.
    """
    own = {name: options.pop(name) for name in _NAMES}
    if not own["ca_consul_key"]:
        return None
    if options.get("ca_dir") is not None:
        raise click.UsageError("--ca-dir and --ca-consul-key exclude each other: the CA is in one place")
    if options.get("vault_addr"):
        raise click.UsageError("--vault-addr and --ca-consul-key exclude each other: one of them signs")
    datacenters = consul_datacenters(options, environment)
    if not datacenters:
        raise click.UsageError("--ca-consul-key needs an agent to ask: --consul-server-url")
    return ca_store(own, datacenters[0].agent, datacenters[0].datacenter)


def ca_store(options: Mapping[str, Any], agent: Agent, datacenter: str) -> ConsulStoreSettings:
    """The settings of the store that the options name at an agent. Raises UsageError."""
    import attrs

    from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings

    if options["ca_consul_token_file"] is not None:
        agent = attrs.evolve(agent, token="", token_file=options["ca_consul_token_file"])
    settings = ConsulStoreSettings(
        key=options["ca_consul_key"],
        agent=agent,
        datacenter=datacenter,
        encryption_file=options["ca_key_encryption_file"],
        allow_plaintext=options["ca_key_plaintext"],
    )
    if problem := settings.problem():
        raise click.UsageError(f"--ca-consul-key: {problem} (--ca-key-encryption-file)")
    return settings
