"""Flags and variables about Consul, and what they come to."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from mesh_pilot.cli.discovery.registries.consul import ConsulFlags
from mesh_pilot.consul.source import Consistency, ConsulSettings, CriticalRule, WarningRule
from mesh_pilot.model.flags import built, flags_of
from mesh_pilot.model.service import Protocol
from tests.support.flags import taken


def settings(*arguments: str, **environment: str) -> tuple[ConsulSettings, ...]:
    """What a command line comes to."""
    return taken([ConsulFlags], lambda values: built(ConsulFlags, values).datacenters(environment), arguments)


def test_the_values_of_choices_are_those_of_the_settings() -> None:
    offered = {setting.key: setting.kind for setting in flags_of(ConsulFlags)}
    for name, rule in (("consistency", Consistency), ("warning", WarningRule), ("critical", CriticalRule)):
        assert offered[f"consul-{name}"] == tuple(map(str, rule))


def test_without_an_agent_there_is_no_consul() -> None:
    assert settings() == ()


def test_flags_are_taken(tmp_path: Path) -> None:
    arguments = (
        "--consul-server-url https://c:1 --consul-domain .mesh. --consul-config-prefix /a/b/ --consul-hold forever"
    )
    (one,) = settings(*arguments.split(), "--consul-critical", "unhealthy", "--consul-default-protocol", "HTTP")
    assert one.agent.base_url == "https://c:1"
    assert (one.domain, one.config_prefix, one.timing.hold_seconds) == ("mesh", "a/b", float("inf"))
    assert one.critical is CriticalRule.UNHEALTHY
    assert one.default_protocol is Protocol.HTTP


def test_consuls_own_variables_count_where_no_flag_says_otherwise() -> None:
    variables = {
        "CONSUL_HTTP_ADDR": "c:8501",
        "CONSUL_HTTP_SSL": "true",
        "CONSUL_HTTP_TOKEN": "t",
        "CONSUL_CACERT": "ca",
    }
    (one,) = settings(**variables)
    assert one.agent.base_url == "https://c:8501"
    assert (one.agent.token, one.agent.tls.ca_file) == ("t", Path("ca"))
    (other,) = settings("--consul-token", "mine", "--consul-ca-file", "my-ca", **variables)
    assert (other.agent.token, other.agent.tls.ca_file) == ("mine", Path("my-ca"))
    (third,) = settings("--consul-token-file", "f", **variables)
    assert (third.agent.token, third.agent.token_file) == ("", Path("f"))


def test_the_first_datacenter_is_the_meshs_own() -> None:
    url = "--consul-server-url"
    found = settings(url, "http://a", url, "http://b", "--consul-config-prefix", "p")
    assert [(c.agent.address, c.remote, c.config_prefix) for c in found] == [
        ("http://a", False, "p"),
        ("http://b", True, ""),
    ]
    dc = "--consul-datacenter"
    found = settings(url, "http://a", dc, "one", dc, "two")
    assert [(c.agent.address, c.datacenter, c.remote) for c in found] == [
        ("http://a", "one", False),
        ("http://a", "two", True),
    ]
    found = settings(url, "http://a", url, "http://b", dc, "one", dc, "two")
    assert [(c.agent.address, c.datacenter) for c in found] == [("http://a", "one"), ("http://b", "two")]


def test_other_datacenters_may_be_merged_into_the_first() -> None:
    url = "--consul-server-url"
    found = settings(url, "http://a", url, "http://b", "--consul-merge-datacenters")
    assert [(c.remote, c.merged) for c in found] == [(False, False), (True, True)]


def test_datacenters_behind_one_agent_share_its_connections() -> None:
    dc, url = "--consul-datacenter", "--consul-server-url"
    assert [c.max_queries for c in settings(url, "http://a", dc, "one", dc, "two")] == [30, 30]
    assert [c.max_queries for c in settings(url, "http://a", url, "http://b")] == [60, 60]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--consul-server-url ftp://x", "'ftp://x' is not an address of a Consul agent"),
        ("--consul-datacenter dc1", "needs an agent to ask"),
        ("--consul-server-url a --consul-server-url b --consul-datacenter c", "give one datacenter for each agent"),
        ("--consul-default-protocol htpp", "'htpp' is not a protocol"),
    ],
)
def test_what_can_not_be_meant_is_said(arguments: str, reason: str) -> None:
    with pytest.raises(click.UsageError, match=reason):
        settings(*arguments.split())


def test_all_namespaces_at_once_are_refused() -> None:
    with pytest.raises(click.UsageError, match="Consul's catalog does not say of which namespace a service is"):
        settings("--consul-server-url", "http://a:8500", "--consul-namespace", "*")
    with pytest.raises(click.UsageError, match="name one"):
        settings("--consul-server-url", "http://a:8500", CONSUL_NAMESPACE="*")
