"""Flags about leader election, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from mesh_pilot.cli.discovery.flags import ElectionFlags
from mesh_pilot.cli.discovery.registries.consul import ConsulFlags
from mesh_pilot.consul.election.lock import ConsulElectionSettings
from mesh_pilot.kubernetes.election.lease import KubernetesElectionSettings
from mesh_pilot.model.flags import built
from mesh_pilot.replicas.election.base import ElectionSettings
from tests.support.flags import taken

CONSUL = ("--leader-election", "consul", "--consul-server-url", "http://c:8500")
KUBERNETES = ("--leader-election", "kubernetes")


def settings(*arguments: str, **environment: str) -> ElectionSettings | None:
    """What a command line comes to."""

    def take(values: dict[str, Any]) -> ElectionSettings | None:
        consul = built(ConsulFlags, values)
        return built(ElectionFlags, values).settings(consul, Path("config"), "mesh", environment)

    return taken([ElectionFlags, ConsulFlags], take, arguments)


def test_a_single_plane_needs_no_election() -> None:
    assert settings() is None


def test_the_agent_of_the_meshs_own_datacenter_has_the_lock() -> None:
    found = settings(*CONSUL, "--consul-server-url", "http://d:8500", "--consul-token", "secret")
    assert isinstance(found, ConsulElectionSettings)
    assert (found.agent.address, found.agent.token) == ("http://c:8500", "secret")
    assert (found.key, found.ttl_seconds) == ("mesh-pilot/leader", 15.0)
    other = settings(*CONSUL, "--leader-election-key", "/a/b/", "--leader-election-ttl", "30s")
    assert isinstance(other, ConsulElectionSettings)
    assert (other.key, other.ttl_seconds) == ("a/b", 30.0)
    assert settings("--leader-election", "consul", CONSUL_HTTP_ADDR="c:8500") is not None


def test_a_lease_is_in_the_namespace_of_the_plane_unless_it_is_named() -> None:
    found = settings(*KUBERNETES)
    assert isinstance(found, KubernetesElectionSettings)
    assert (found.namespace, found.name, found.kubeconfig) == ("mesh", "mesh-pilot-leader", Path("config"))
    named = settings(*KUBERNETES, "--leader-election-key", "ops/lead")
    assert isinstance(named, KubernetesElectionSettings)
    assert (named.namespace, named.name) == ("ops", "lead")


@pytest.mark.parametrize(("arguments", "says"), [
    (("--leader-election", "consul"), "needs an agent to ask: --consul-server-url"),
    (("--leader-election-key", "a/b"), "needs --leader-election consul or kubernetes"),
    ((*KUBERNETES, "--leader-election-key", "lead"), "'lead' is not NAMESPACE/NAME of a Lease"),
    ((*KUBERNETES, "--leader-election-key", "a/b/c"), "'a/b/c' is not NAMESPACE/NAME of a Lease"),
    ((*CONSUL, "--leader-election-ttl", "500ms"), "between 1s and 60s"),
    ((*CONSUL, "--leader-election-ttl", "2m"), "between 1s and 60s"),
])  # fmt: skip
def test_what_cannot_work_is_refused_with_the_flag(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        settings(*arguments)
