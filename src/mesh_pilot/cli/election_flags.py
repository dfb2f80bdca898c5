"""The flags of ``mesh-pilot discovery`` about the election of a leader among replicas."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import duration
from mesh_pilot.cli.registries.consul import consul_datacenters

if TYPE_CHECKING:
    from mesh_pilot.replicas.election.base import ElectionSettings

NONE, CONSUL, KUBERNETES = "none", "consul", "kubernetes"

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--leader-election",
        {
            "type": click.Choice([NONE, CONSUL, KUBERNETES]),
            "default": NONE,
            "help": "How replicas agree on the one that does what must be done once (docs/replicas.md).",
        },
    ),
    (
        "--leader-election-key",
        {
            "default": "",
            "help": "Entry of Consul's KV store, or NAMESPACE/NAME of a Lease."
            "  [default: mesh-pilot/leader; a Lease mesh-pilot-leader in --namespace]",
        },
    ),
    (
        "--leader-election-ttl",
        {"type": duration, "default": "15s", "help": "A leader that is silent for so long leads no more."},
    ),
)


def take_election(options: MutableMapping[str, Any], environment: Mapping[str, str]) -> ElectionSettings | None:
    """The settings that were given, taken out of the options of the command; None without an election.

    Those of the agent, of the API server and of the namespace stay there. Raises UsageError.
    """
    kind, key = options.pop("leader_election"), options.pop("leader_election_key").strip("/")
    ttl_seconds = options.pop("leader_election_ttl")
    if kind == NONE:
        if key:
            raise click.UsageError("--leader-election-key needs --leader-election consul or kubernetes")
        return None
    from mesh_pilot.app.election_settings import (
        SHORTEST_SECONDS,
        ConsulElectionSettings,
        KubernetesElectionSettings,
    )
    from mesh_pilot.kubernetes.election.lease_record import LONGEST_SECONDS

    if not SHORTEST_SECONDS <= ttl_seconds <= LONGEST_SECONDS:
        raise click.UsageError(f"--leader-election-ttl is between {SHORTEST_SECONDS:g}s and {LONGEST_SECONDS:g}s")
    if kind == CONSUL:
        datacenters = consul_datacenters(options, environment)
        if not datacenters:
            raise click.UsageError("--leader-election consul needs an agent to ask: --consul-server-url")
        first = datacenters[0]
        named = {"key": key} if key else {}
        return ConsulElectionSettings(agent=first.agent, datacenter=first.datacenter, ttl_seconds=ttl_seconds, **named)
    namespace, slash, name = key.partition("/")
    if key and (not slash or not namespace or not name or "/" in name):
        raise click.UsageError(f"--leader-election-key: {key!r} is not NAMESPACE/NAME of a Lease")
    kubeconfig: Path | None = options["kubernetes_kubeconfig"]
    lease = {"namespace": namespace, "name": name} if key else {"namespace": options["namespace"]}
    return KubernetesElectionSettings(kubeconfig=kubeconfig, ttl_seconds=ttl_seconds, **lease)
