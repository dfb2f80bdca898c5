"""Dumps of a cluster with Istio: what is taken, what is cleaned, what is listed with its line."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from mesh_pilot.istio.reading.yaml_text import yaml_text
from tests.migration.dumps import dump_of, left, migrate, reasons, specs
from tests.support.certificates import write_certificates


def istio(kind: str, name: str, spec: dict[str, Any], group: str = "networking.istio.io/v1", **metadata: Any) -> Any:
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": name, "namespace": "shop", **metadata},
        "spec": spec,
    }


def test_what_is_wrong_is_listed_with_its_line_and_costs_nothing_else() -> None:
    found = dump_of("kubernetes")
    (broken,) = (each for each in left(found) if each.object == "VirtualService/bookinfo/broken")
    assert (broken.where, broken.field) == ("dump.yaml:192", "spec.http[0].timeout")
    assert broken.reason.startswith("'soon' is not a duration") or "soon" in broken.reason
    assert "reviews" in specs(found, "VirtualService")


def test_objects_lose_what_a_server_wrote_and_keep_what_orders_them() -> None:
    found = dump_of("kubernetes")
    (gateway,) = (made.document for made in found.objects if made.document["kind"] == "Gateway")
    assert gateway["metadata"] == {
        "name": "bookinfo",
        "namespace": "bookinfo",
        "creationTimestamp": "2025-03-01T09:12:00Z",
    }
    assert not any("status" in made.document for made in found.objects)


def test_a_service_selects_the_workload_entries_of_its_pods() -> None:
    found = dump_of("kubernetes")
    assert specs(found, "ServiceEntry")["reviews"]["workloadSelector"] == {"labels": {"app": "reviews"}}
    entries = specs(found, "WorkloadEntry")
    assert {name: spec["address"] for name, spec in entries.items()} == {
        "reviews-v1-545db77b95-lq7zv": "10.244.1.17",
        "reviews-v2-7bf98b6b6d-9fk2m": "10.244.1.18",
    }
    assert all(spec["locality"] == "eu-west/eu-west-1a" for spec in entries.values())


def test_a_service_without_pods_has_its_endpoints_in_itself() -> None:
    entry = specs(dump_of("kubernetes"), "ServiceEntry")["ratings-db"]
    assert (entry["endpoints"], entry["ports"][0]["targetPort"]) == ([{"address": "192.168.7.20"}], 27018)


def test_pods_are_endpoints_where_a_dump_has_no_endpoints() -> None:
    metadata = {"name": "web-0", "namespace": "shop", "labels": {"app": "web"}}
    container = {"name": "web", "ports": [{"name": "main", "containerPort": 8081}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    pod["status"] = {"podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]}
    ports = [{"name": "http", "port": 80, "targetPort": "main"}]
    service = istio("Service", "web", {"selector": {"app": "web"}, "ports": ports}, "v1")
    found = migrate("kubernetes", yaml_text([service, pod]))
    assert specs(found, "WorkloadEntry")["web-0"]["address"] == "10.0.0.7"
    assert specs(found, "ServiceEntry")["web"]["ports"][0]["targetPort"] == 8081


def test_services_stay_out_if_they_are_not_wanted() -> None:
    found = dump_of("kubernetes", services=False)
    assert specs(found, "ServiceEntry") == {}
    assert "Service/bookinfo/reviews" in {each.object for each in left(found, needless=True)}


def test_a_serviceentry_of_the_dump_wins_over_a_service_of_its_host() -> None:
    ports = [{"number": 80, "name": "http", "protocol": "HTTP"}]
    mine = istio("ServiceEntry", "mine", {"hosts": ["web.shop.svc.cluster.local"], "ports": ports, "resolution": "DNS"})
    service = istio("Service", "web", {"ports": [{"port": 80}]}, "v1")
    assert list(specs(migrate("kubernetes", yaml_text([service, mine])), "ServiceEntry")) == ["mine"]


def test_mesh_config_and_networks_become_files() -> None:
    data = {"mesh": "accessLogFile: /dev/stdout\n", "meshNetworks": "networks: {a: {endpoints: [{fromRegistry: x}]}}"}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio"}, "data": data}
    found = migrate("kubernetes", json.dumps(config_map))
    assert found.mesh == {"accessLogFile": "/dev/stdout"}
    assert found.networks is not None
    assert "a" in found.networks["networks"]


def test_a_wrong_mesh_config_is_listed_and_not_written() -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio"}, "data": {"mesh": "foo: 1"}}
    found = migrate("kubernetes", json.dumps(config_map))
    assert found.mesh is None
    assert "data.mesh" in next(iter(reasons(found)))


def test_of_two_objects_of_a_name_the_first_counts_and_the_other_is_listed() -> None:
    texts = [istio("VirtualService", "web", {"hosts": [host], "http": []}) for host in ("a.test", "b.test", "a.test")]
    for each in texts:
        each["spec"]["http"] = [{"route": [{"destination": {"host": "a.test"}}]}]
    found = migrate("kubernetes", yaml_text(texts))
    assert specs(found, "VirtualService")["web"]["hosts"] == ["a.test"]
    assert reasons(found)["VirtualService/shop/web"].startswith("is there twice, and not the same")
    assert [each.reason for each in left(found, needless=True)] == ["is there twice, and the same"]


def secret_of(folder: Path) -> dict[str, Any]:
    files = write_certificates(folder, "shop", dns=("shop.test",))
    parts = {"tls.crt": files.certificate.read_bytes(), "tls.key": files.key.read_bytes()}
    data = {name: base64.b64encode(value).decode() for name, value in parts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data}


def gateway_naming(name: str) -> Any:
    server = {"port": {"number": 443, "name": "https", "protocol": "HTTPS"}, "hosts": ["*"]}
    tls = {"mode": "SIMPLE", "credentialName": name}
    return istio("Gateway", "edge", {"selector": {"istio": "edge"}, "servers": [{**server, "tls": tls}]})


def test_keys_are_copied_only_if_asked_for_and_only_those_that_are_named(tmp_path: Path) -> None:
    named = {**secret_of(tmp_path), "metadata": {"name": "shop-cert", "namespace": "edge"}}
    other = {**secret_of(tmp_path), "metadata": {"name": "other", "namespace": "edge"}}
    text = yaml_text([gateway_naming("shop-cert"), named, other])
    found = migrate("kubernetes", text)
    assert found.credentials == ()
    assert reasons(found)["Secret/edge/shop-cert"] == "a private key is copied only if asked for"
    (credential,) = migrate("kubernetes", text, secrets=True).credentials
    assert (credential.namespace, credential.name, set(credential.parts)) == (
        "edge",
        "shop-cert",
        {"tls.crt", "tls.key"},
    )
    assert "PRIVATE" not in repr(credential)


def test_a_name_that_would_leave_the_folder_is_refused(tmp_path: Path) -> None:
    evil = {**secret_of(tmp_path), "metadata": {"name": "../../evil", "namespace": "edge"}}
    found = migrate("kubernetes", yaml_text([gateway_naming("../../evil"), evil]), secrets=True)
    assert found.credentials == ()


def test_needless_objects_are_apart_from_what_is_lost() -> None:
    found = dump_of("kubernetes")
    needless = {each.object for each in left(found, needless=True)}
    assert needless >= {"Deployment/bookinfo/reviews-v1", "WorkloadEntry/bookinfo/vm-group-10.0.0.9"}
    assert "NetworkPolicy/bookinfo/default-deny" in {each.object for each in left(found)}
