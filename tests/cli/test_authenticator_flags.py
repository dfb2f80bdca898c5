"""Flags about tokens that others made, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from mesh_pilot.cli.discovery.connection_flags import ForeignTokenFlags
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
from mesh_pilot.model.flags import built
from tests.support.flags import taken

CONSUL = ConsulRegistry((ConsulSettings(agent=Agent("http://c:1")), ConsulSettings(agent=Agent("http://d:1"))))


def settings(*arguments: str, consul: bool = True) -> ForeignTokenSettings:
    """What a command line comes to, next to a Consul or none."""

    def take(values: dict[str, Any]) -> ForeignTokenSettings:
        registries = (CONSUL,) if consul else ()
        return built(ForeignTokenFlags, values).settings(registries, needs_kubeconfig=False)

    return taken([ForeignTokenFlags], take, arguments)


def test_no_tokens_are_accepted_unless_a_flag_says_so() -> None:
    assert settings() == ForeignTokenSettings()


def test_flags_are_taken() -> None:
    found = settings("--jwt-rules", "rules.yaml", "--accept-kubernetes-tokens", "--kubernetes-token-audience", "mesh")
    assert found.jwt_rules == Path("rules.yaml")
    assert found.kubernetes is not None and found.kubernetes.audiences == ("mesh",)
    default = settings("--accept-kubernetes-tokens", "--kubernetes-kubeconfig", "config").kubernetes
    assert default is not None and (default.audiences, default.kubeconfig) == (("istio-ca",), Path("config"))


def test_the_agent_of_the_meshs_own_datacenter_is_asked() -> None:
    found = settings("--accept-consul-tokens").consul
    assert found is not None and not found.trust_namespaces
    assert found.datacenter.agent.address == "http://c:1"
    trusting = settings("--accept-consul-tokens", "--trust-consul-namespaces").consul
    assert trusting is not None and trusting.trust_namespaces


@pytest.mark.parametrize(("arguments", "says"), [
    (["--accept-consul-tokens"], "needs an agent to ask"),
    (["--trust-consul-namespaces"], "is about the tokens of --accept-consul-tokens"),
    (["--kubernetes-kubeconfig", "config"], "needs --accept-kubernetes-tokens or --leader-election"),
])  # fmt: skip
def test_flags_without_the_one_that_they_are_about_are_refused(arguments: list[str], says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        settings(*arguments, consul=False)
