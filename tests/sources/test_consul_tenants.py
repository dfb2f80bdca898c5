"""Namespaces and partitions of Consul Enterprise, as its documentation has them: no test has an Enterprise."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.consul.mesh import ConsulMesh, MeshSettings
from mesh_pilot.consul.mesh.entries import read_entry
from mesh_pilot.consul.mesh.fields import Tenant
from mesh_pilot.consul.mesh.intentions import read_intentions
from mesh_pilot.consul.source import ConsulSettings
from mesh_pilot.consul.source.instance import read_instance
from mesh_pilot.consul.source.mapping import read_service
from tests.sources.test_consul_mapping import entry, reasons, service

TEAM = Tenant("team", "edge")


def names_of(*entries: dict[str, Any], **settings: Any) -> list[str]:
    found = read_service("web", map(read_instance, entries), ConsulSettings(**settings))
    assert all(alias.external_name == "web.service.consul" for alias in found.aliases)
    return [alias.host for alias in found.aliases]


def test_a_namespace_of_consul_is_one_of_the_mesh() -> None:
    assert service(entry(Namespace="team")).key == ("web.service.consul", "team")
    assert service(entry(Namespace="default"), namespace="shop").namespace == "shop"
    assert service(entry(Namespace="team", meta={"namespace": "shop"})).namespace == "shop"
    assert service(entry(Namespace="No Such"), namespace="shop").namespace == "shop"
    assert service(entry(Namespace=7)).namespace == "default"


@pytest.mark.parametrize(
    ("tenant", "short"),
    [
        ({"Namespace": "team"}, "team.ns"),
        ({"Namespace": "default", "Partition": "edge"}, "edge.ap"),
        ({"Namespace": "team", "Partition": "edge"}, "team.ns.edge.ap"),
    ],
)
def test_the_names_of_consuls_dns_with_namespace_and_partition_are_aliases(tenant: dict[str, Any], short: str) -> None:
    full = f"{tenant['Namespace']}.ns.{tenant.get('Partition', 'default')}.ap.dc1.dc"
    assert names_of(entry(**tenant)) == [f"web.service.{short}.consul", f"web.service.{full}.consul"]
    ports = [{"Name": "http", "Port": 8080}]
    assert names_of(entry(port=0, Ports=ports, **tenant))[2:] == [
        "web.virtual.consul",
        "http.web.virtual.consul",
        f"web.virtual.{short}.consul",
        f"http.web.virtual.{short}.consul",
        f"web.virtual.{full}.consul",
        f"http.web.virtual.{full}.consul",
    ]


def test_the_partition_of_a_node_is_that_of_its_instances() -> None:
    assert names_of(entry(node={"Partition": "edge"}))[0] == "web.service.edge.ap.consul"
    assert names_of(entry(node={"Partition": "default"}, Namespace="default", Partition="default")) == []


def test_entries_of_the_namespace_and_partition_that_are_read_count() -> None:
    own = {"Namespace": "team", "Partition": "edge", "Protocol": "http"}
    read = read_entry("service-defaults", own, (), TEAM)
    assert (read.protocol, read.problems) == ("http", ())
    assert read_entry("service-defaults", {"Protocol": "http"}, (), TEAM).protocol == "http"
    for name, value in (("Namespace", "default"), ("Namespace", "other"), ("Partition", "default")):
        other = read_entry("service-defaults", {**own, name: value}, (), TEAM)
        assert other.protocol == ""
        assert [p.reason for p in other.problems] == [
            f"is of {name.lower()} {value!r}, which is not read; it has no effect"
        ]


def test_an_entry_may_name_its_own_namespace_and_no_other() -> None:
    redirect = {"Redirect": {"Service": "db", "Namespace": "team"}}
    assert read_entry("service-resolver", redirect, (), TEAM).redirect is not None
    elsewhere = read_entry("service-resolver", {"Redirect": {"Service": "db", "Namespace": "default"}}, (), TEAM)
    assert elsewhere.redirect is None and elsewhere.problems


def test_proxy_defaults_are_in_the_default_namespace_of_a_partition() -> None:
    said = {"Namespace": "default", "Partition": "edge", "Config": {"protocol": "http"}}
    assert read_entry("proxy-defaults", said, (), TEAM).protocol == "http"


def test_intentions_between_services_of_the_namespace_that_is_read_count() -> None:
    own = {"SourceName": "web", "DestinationName": "db", "Action": "deny", "SourceNS": "team", "DestinationNS": "team"}
    found, problems = read_intentions([own], TEAM)
    assert [(each.source, each.destination) for each in found] == [("web", "db")] and problems == {}
    found, problems = read_intentions([{**own, "SourceNS": "default"}], TEAM)
    assert found == [] and len(problems) == 1
    found, _ = read_intentions([{**own, "DestinationNS": "default"}], TEAM)
    assert found == []


def test_a_mesh_reads_entries_of_the_namespace_in_its_settings() -> None:
    mesh = ConsulMesh(MeshSettings(consul_namespace="team"))
    mesh.put_entry("service-defaults", "web", {"Namespace": "team", "Protocol": "grpc"})
    assert mesh.protocol("web") == "grpc"


def test_without_a_namespace_nothing_is_different() -> None:
    found = read_service("web", [read_instance(entry())], ConsulSettings())
    assert found.aliases == () and reasons(found) == []
