"""Consul's own mesh as the source reads it: sidecars as endpoints, roots, leaves and who may have them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mesh_pilot.cli.discovery.command import command
from mesh_pilot.consul.source import Agent, ConsulSettings, ConsulSource
from mesh_pilot.consul.source.connect import LeafError, read_leaf, read_roots
from mesh_pilot.consul.source.instance import read_instance
from mesh_pilot.consul.source.mapping import ConnectFacts, MappedService, read_service
from mesh_pilot.model.connect import CONNECT_ROOTS, connect_caller, connect_leaf
from mesh_pilot.model.events import Grant, Secret
from mesh_pilot.model.service import Endpoint, Health
from tests.sources.conformance import Picture, running
from tests.sources.test_consul_access import ROOT, TIMING, acl, as_root
from tests.sources.test_consul_mapping import entry
from tests.support.consul import real_consul
from tests.support.envoy import eventually
from tests.support.x509_parts import HOUR, named, unsigned

DOMAIN = "11111111-2222-3333-4444-555555555555.consul"
WEB = f"spiffe://{DOMAIN}/ns/default/dc/dc1/svc/web"


def sidecar(of: str, **more: Any) -> dict[str, Any]:
    proxy = {"DestinationServiceName": "web", "DestinationServiceID": of}
    return entry(f"{of}-sidecar-proxy", port=21000, Kind="connect-proxy", Proxy=proxy, **more)


def read(*instances: dict[str, Any], sidecars: tuple[dict[str, Any], ...] = (), domain: str = DOMAIN) -> MappedService:
    found = map(read_instance, sidecars)
    facts = ConnectFacts(domain, {(each.node, each.proxied_id): each for each in found})
    return read_service("web", map(read_instance, instances), ConsulSettings(mesh=True, connect=True), connect=facts)


def called(reading: MappedService) -> list[tuple[str, int, str]]:
    """The endpoints that clients are told of."""
    assert reading.endpoints is not None
    return [(e.address, e.port, e.tls_mode) for e in reading.endpoints.endpoints if e.health is not Health.UNLISTED]


def own(reading: MappedService) -> list[Endpoint]:
    """The endpoints for a proxy of ours next to the application alone."""
    assert reading.endpoints is not None
    return [e for e in reading.endpoints.endpoints if e.health is Health.UNLISTED]


def test_an_instance_is_called_at_its_sidecar_until_it_has_moved() -> None:
    reading = read(entry(), sidecars=(sidecar("web-1"),))
    assert called(reading) == [("10.0.0.1", 21000, "consul-connect")]
    assert [(e.address, e.port) for e in own(reading)] == [("10.0.0.1", 8080)]
    assert reading.service is not None and reading.service.connect_id == WEB
    moved = read(entry(meta={"tls_mode": "istio"}), sidecars=(sidecar("web-1"),))
    assert called(moved) == [("10.0.0.1", 8080, "istio")]


def test_an_instance_without_a_sidecar_is_not_called_in_plaintext_where_others_have_one() -> None:
    reading = read(entry(), entry("web-2", address="10.0.0.2"), sidecars=(sidecar("web-1"),))
    assert called(reading) == [("10.0.0.1", 21000, "consul-connect")]
    assert called(read(entry())) == [("10.0.0.1", 8080, "")]


def test_no_sidecar_is_called_while_the_trust_domain_is_not_known() -> None:
    reading = read(entry(), sidecars=(sidecar("web-1"),), domain="")
    assert called(reading) == []
    assert reading.service is not None and reading.service.connect_id == ""


def test_a_sidecar_that_is_critical_is_not_called() -> None:
    assert called(read(entry(), sidecars=(sidecar("web-1", checks=("critical",)),))) == []


def test_an_application_that_speaks_connect_itself_is_called_so() -> None:
    reading = read(entry(Connect={"Native": True}))
    assert called(reading) == [("10.0.0.1", 8080, "consul-connect")]
    assert reading.problems == ()


def test_a_further_port_that_no_sidecar_leads_to_is_told() -> None:
    reading = read(entry(meta={"port_admin": "9000"}), sidecars=(sidecar("web-1"),))
    assert called(reading) == [("10.0.0.1", 21000, "consul-connect")]
    assert "leads to one port" in str(reading.problems[-1])


# -- roots and leaves as Consul gives them


def leaf(uri: str = WEB, *, ends: timedelta = HOUR, other_key: bool = False) -> dict[str, str]:
    key, ca = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    made = unsigned(named("web"), named("ca"), key.public_key(), begins=-2 * HOUR, ends=ends)
    name = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
    certificate = made.add_extension(name, critical=False).sign(ca, SHA256())
    shown = ec.generate_private_key(ec.SECP256R1()) if other_key else key
    pem = shown.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return {"CertPEM": certificate.public_bytes(Encoding.PEM).decode(), "PrivateKeyPEM": pem.decode()}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "as a certificate with its key"),
        ({**leaf(), "PrivateKeyPEM": "nonsense"}, "as a certificate with its key"),
        (leaf(other_key=True), "not that of its certificate"),
        (leaf(WEB.replace("web", "api")), "is for spiffe://"),
        (leaf(WEB.replace("1111", "9999")), "is for spiffe://"),
        (leaf("spiffe://cluster.local/ns/default/sa/web"), "is for spiffe://"),
        (leaf(ends=-HOUR), "ended at"),
    ],
)
def test_a_leaf_that_can_not_be_presented_is_refused(data: dict[str, str], reason: str) -> None:
    with pytest.raises(LeafError, match=reason):
        read_leaf(data, "web", DOMAIN, datetime.now(UTC))
    assert read_leaf(leaf(), "web", DOMAIN, datetime.now(UTC)).chain.startswith(b"-----BEGIN")


def test_all_active_roots_are_trusted() -> None:
    one, two = leaf()["CertPEM"], leaf()["CertPEM"]
    domain, roots = read_roots({"TrustDomain": DOMAIN, "Roots": [{"RootCert": one}, {"RootCert": two}]})
    assert domain == DOMAIN and roots.count(b"BEGIN") == 2
    for bad in ({"TrustDomain": DOMAIN, "Roots": []}, {"TrustDomain": DOMAIN, "Roots": [{"RootCert": "x"}]}, {}):
        with pytest.raises(LeafError):
            read_roots(bad)


# -- with a real Consul

Ports = Callable[[int], list[int]]


def secrets(picture: Picture) -> dict[str, Secret]:
    return {item.name: item for item in picture.items.values() if isinstance(item, Secret)}


@pytest.mark.slow
@pytest.mark.process
async def test_a_leaf_is_for_who_the_service_is_and_a_token_without_the_right_is_told(
    tmp_path: Path, free_ports: Ports
) -> None:
    file = tmp_path / "token"
    config = {**acl(Path(ROOT)), "connect": {"enabled": True}}
    async with real_consul(tmp_path, free_ports(4), config=config, led=False) as consul:
        await as_root(consul)
        rules = (
            'service_prefix "" { policy = "read" intentions = "read" } node_prefix "" { policy = "read" } '
            'operator = "read" agent_prefix "" { policy = "read" }'
        )
        file.write_text(await token(consul, "read", rules))
        await consul.register("web", id="web-1", meta={"tls_mode": "istio"})
        await consul.register("api", Connect={"SidecarService": {"Port": 21001}})
        agent = Agent(consul.address, token_file=file)
        source = ConsulSource("consul", ConsulSettings(agent=agent, timing=TIMING, mesh=True, connect=True))
        async with running(source) as follower:
            await follower.until_synced()
            await eventually(lambda: "service:write" in source.statistics().blindness)
            assert set(secrets(follower.picture)) == {CONNECT_ROOTS}
            file.write_text(await token(consul, "write", f'{rules} service "web" {{ policy = "write" }}'))
            whole = {CONNECT_ROOTS, connect_leaf("web"), connect_caller("default", "web")}
            await follower.until(lambda picture: set(secrets(picture)) == whole)
            found = secrets(follower.picture)
            assert found[connect_leaf("web")].grants == (Grant("default", "web"),)
            assert all(secret.is_guarded for secret in found.values())
            assert source.statistics().blindness == ""
            await consul.register("web", id="web-1", meta={"tls_mode": "istio", "service_account": "shop"})
            await follower.until(lambda picture: connect_caller("default", "shop") in secrets(picture))
            await follower.until(lambda picture: connect_caller("default", "web") not in secrets(picture))
            # Another root signs: the leaf is another one, and both roots are trusted meanwhile.
            before = secrets(follower.picture)[connect_leaf("web")]
            key = ec.generate_private_key(ec.SECP256R1())
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
            change = {"Provider": "consul", "Config": {"PrivateKey": pem}}
            await consul.ask("PUT", "/v1/connect/ca/configuration", json=change)
            await follower.until(lambda picture: roots(picture).count(b"BEGIN") == 2)
            assert found[CONNECT_ROOTS].ca_certificates.strip() in roots(follower.picture)
            await follower.until(lambda picture: secrets(picture)[connect_leaf("web")] != before)
            await consul.deregister("web-1")
            await follower.until(lambda picture: set(secrets(picture)) == {CONNECT_ROOTS})


def roots(picture: Picture) -> bytes:
    return secrets(picture)[CONNECT_ROOTS].ca_certificates


async def token(consul: Any, name: str, rules: str) -> str:
    await consul.ask("PUT", "/v1/acl/policy", json={"Name": name, "Rules": rules})
    reply = await consul.ask("PUT", "/v1/acl/token", json={"Policies": [{"Name": name}]})
    return str(reply.json()["SecretID"])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--consul-connect", "needs --consul-mesh"),
        ("--consul-connect --consul-mesh --consul-partition p", "without partitions"),
        ("--consul-connect --consul-mesh --consul-namespace n", "without partitions"),
    ],
)
def test_flags_that_connect_does_not_go_with_are_refused(flags: str, reason: str) -> None:
    arguments = ["--consul-server-url", "http://127.0.0.1:1", "--no-state", *flags.split()]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2 and reason in result.output, result.output
