"""The configuration dump: secrets are blanked, and what can't be read is said instead of failing the page."""

from __future__ import annotations

import json

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.base_pb2 import TransportSocket
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from google.protobuf.any_pb2 import Any as AnyMessage

from mesh_pilot.model.config import ConfigKey, Origin
from mesh_pilot.model.resource import CLUSTER, SECRET, Resource, make_resource
from mesh_pilot.xds.ads.config_dump import ObjectFacts, config_dump
from mesh_pilot.xds.ads.status import TypeDump


def dump(*resources: Resource) -> str:
    return json.dumps(config_dump((TypeDump(resources[0].type_url, "v", True, resources),)))


def test_private_keys_and_passwords_are_blanked_and_certificates_are_not() -> None:
    secret = Secret(name="edge")
    secret.tls_certificate.certificate_chain.inline_bytes = b"the chain"
    secret.tls_certificate.private_key.inline_bytes = b"the private key"
    secret.tls_certificate.password.inline_string = "the password"
    shown = dump(make_resource("edge", SECRET, secret.SerializeToString()))
    for hidden in ("dGhlIHByaXZhdGUga2V5", "the private key", "the password"):
        assert hidden not in shown
    assert "dGhlIGNoYWlu" in shown


def test_a_resource_of_a_type_that_is_not_known_is_shown_as_bytes() -> None:
    odd = AnyMessage(type_url="type.googleapis.com/of.nobody.Knows", value=b"x")
    cluster = Cluster(name="odd", transport_socket=TransportSocket(name="odd", typed_config=odd))
    shown = dump(make_resource("odd", CLUSTER, cluster.SerializeToString()))
    assert "unreadable" in shown
    assert "of.nobody.Knows" in shown


def test_a_resource_whose_bytes_came_with_the_proxy_is_named() -> None:
    shown = dump(Resource("kept", CLUSTER, b"", "1"))
    assert '"name": "kept"' in shown
    assert "earlier connection" in shown


def test_the_objects_that_a_resource_was_made_from_are_named() -> None:
    body = Cluster(name="web").SerializeToString()
    shown = dump(make_resource("web", CLUSTER, body, (ConfigKey("DestinationRule", "shop", "web"),)))
    assert '"made_from": ["DestinationRule/shop/web"]' in shown


def test_the_places_of_objects_are_named_once_for_all_resources() -> None:
    key, gone = ConfigKey("VirtualService", "shop", "web"), ConfigKey("ServiceEntry", "shop", "gone")
    resources = tuple(make_resource(name, CLUSTER, b"", (key, gone)) for name in "ab")
    facts = {key: ObjectFacts(Origin("files", "config/web.yaml", 12), ("web.test",))}
    resources += (make_resource("outbound|80||db.service.consul", CLUSTER, b""),)
    registries = {"db.service.consul": "Consul"}
    shown = config_dump((TypeDump(CLUSTER, "v", True, resources),), facts.get, lambda host: registries.get(host, ""))
    assert isinstance(shown, dict)
    assert shown["origins"] == {"VirtualService/shop/web": "config/web.yaml:12"}
    assert shown["hosts"] == {"VirtualService/shop/web": ["web.test"]}
    assert shown["registries"] == registries
