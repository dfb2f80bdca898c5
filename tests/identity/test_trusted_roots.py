"""The roots that proxies and agents are sent, and a real Envoy that lets foreign roots vouch for their own only."""

from __future__ import annotations

import json
import ssl
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.extensions.transport_sockets.tls.v3.common_pb2 import CertificateValidationContext
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from envoy.extensions.transport_sockets.tls.v3.tls_spiffe_validator_config_pb2 import SPIFFECertValidatorConfig
from google.protobuf.json_format import MessageToJson

from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.identity.trust.bundles import Bundle, TrustStore
from mesh_pilot.identity.trust.callers import TrustDomains
from mesh_pilot.identity.trust.roots import AgentRoots, agent_roots, roots_secret, validation_context
from mesh_pilot.model.resource import PREFIX, SECRET, TRUST_SECRET
from tests.support.binaries import require_binary
from tests.support.envoy import eventually
from tests.support.roots import Root, make_root

OWN, NEXT, EAST = make_root("own"), make_root("next"), make_root("east")


def store(*, east: bool = True, crls: tuple[bytes, ...] = ()) -> TrustStore:
    trust = TrustStore()
    trust.set_domains(TrustDomains("west.test", frozenset({"old.test"})))
    trust.put("ca", Bundle((OWN.pem, NEXT.pem), crls))
    if east:
        trust.put("https://east.test", Bundle((EAST.pem,)), trust_domain="east.test")
        trust.put("https://east.test", Bundle((EAST.pem,)), trust_domain="old.test")
    return trust


def validator(context: CertificateValidationContext) -> dict[str, bytes]:
    config = SPIFFECertValidatorConfig.FromString(context.custom_validator_config.typed_config.value)
    return {each.name: each.trust_bundle.inline_bytes for each in config.trust_domains}


def test_own_roots_alone_are_sent_as_istiod_does() -> None:
    secret = roots_secret(store(east=False, crls=(b"CRL\n",)))
    assert secret is not None
    context = Secret.FromString(secret.body).validation_context
    assert context.trusted_ca.inline_bytes == OWN.pem + NEXT.pem
    assert context.crl.inline_bytes == b"CRL\n"
    assert not context.HasField("custom_validator_config")


def test_without_a_root_of_our_own_there_is_no_secret() -> None:
    trust = TrustStore()
    trust.put("https://east.test", Bundle((EAST.pem,)), trust_domain="east.test")
    assert roots_secret(trust) is None


def test_with_foreign_roots_each_trust_domain_has_its_own() -> None:
    own = OWN.pem + NEXT.pem
    assert validator(validation_context(store())) == {
        "west.test": own,
        "old.test": own + EAST.pem,
        "east.test": EAST.pem,
    }


def test_agents_are_sent_all_roots_and_told_of_changes() -> None:
    trust = store()
    wakes: list[int] = []
    roots = AgentRoots(trust)
    roots.attach("reader", lambda: wakes.append(1))
    (resource,) = roots.snapshot().entries.values()
    assert resource == agent_roots(trust)
    assert ProxyConfig.parse(resource.body).ca_certificates_pem == sorted(r.pem.decode() for r in (OWN, NEXT, EAST))
    trust.put("ca", Bundle((NEXT.pem,)))
    assert wakes == [1]
    assert list(roots.snapshot().entries.values()) == [agent_roots(trust)] != [resource]
    assert roots.detach("reader")


def write_roots(folder: Path, trust: TrustStore) -> None:
    """Put ``ROOTCA`` where Envoy reads it."""
    resource = roots_secret(trust)
    assert resource is not None
    secret = json.loads(MessageToJson(Secret.FromString(resource.body)))
    text = json.dumps({"resources": [{"@type": SECRET, **secret}]})
    (folder / "new.json").write_text(text)
    (folder / "new.json").rename(folder / "roots.json")


def bootstrap(folder: Path) -> dict[str, Any]:
    """An Envoy that lets in clients as a sidecar does: names are matched next to the secret with the roots."""
    chain, key = OWN.leaf("spiffe://west.test/ns/shop/sa/server")
    (folder / "chain.pem").write_bytes(chain)
    (folder / "key.pem").write_bytes(key)
    prefixes = [{"prefix": f"spiffe://{domain}/"} for domain in ("west.test", "old.test", "east.test")]
    tls = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "require_client_certificate": True,
        "common_tls_context": {
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": str(folder / "chain.pem")},
                    "private_key": {"filename": str(folder / "key.pem")},
                }
            ],
            "combined_validation_context": {
                "default_validation_context": {
                    "match_typed_subject_alt_names": [{"san_type": "URI", "matcher": prefix} for prefix in prefixes]
                },
                "validation_context_sds_secret_config": {
                    "name": TRUST_SECRET,
                    "sds_config": {"path_config_source": {"path": str(folder / "roots.json")}},
                },
            },
        },
    }
    hcm = {
        "@type": PREFIX + HttpConnectionManager.DESCRIPTOR.full_name,
        "stat_prefix": "in",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                },
            }
        ],
    }
    anywhere = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    listener = {
        "name": "in",
        "address": anywhere,
        "filter_chains": [
            {
                "filters": [{"name": "hcm", "typed_config": hcm}],
                "transport_socket": {"name": "tls", "typed_config": tls},
            }
        ],
    }
    node = {"id": "server", "cluster": "server"}
    return {"node": node, "admin": {"address": anywhere}, "static_resources": {"listeners": [listener]}}


async def is_let_in(address: str, folder: Path, root: Root, spiffe_id: str) -> bool:
    chain, key = root.leaf(spiffe_id)
    (folder / "client.pem").write_bytes(chain + key)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(folder / "client.pem")
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=60) as client:
        try:
            return (await client.get(f"https://{address}/")).status_code == 200
        except httpx.TransportError:
            return False


@pytest.mark.envoy
@pytest.mark.smoke
async def test_in_envoy_a_foreign_root_vouches_for_its_trust_domain_only(tmp_path: Path) -> None:
    require_binary("envoy")
    write_roots(tmp_path, store(east=False))
    async with running_envoy(bootstrap(tmp_path), tmp_path) as envoy:
        await envoy.wait_live()
        address = (await envoy.listening())["in"]

        async def let_in(root: Root, domain: str) -> bool:
            return await is_let_in(address, tmp_path, root, f"spiffe://{domain}/ns/shop/sa/web")

        assert await let_in(OWN, "west.test")
        assert not await let_in(EAST, "east.test")
        write_roots(tmp_path, store())
        await eventually(lambda: let_in(EAST, "east.test"), what="the new roots")
        for root, domain, expected in (
            (OWN, "west.test", True),
            (NEXT, "west.test", True),
            (OWN, "old.test", True),
            (EAST, "old.test", True),
            (EAST, "west.test", False),
            (OWN, "east.test", False),
            (make_root("east"), "east.test", False),
            (OWN, "north.test", False),
        ):
            assert await let_in(root, domain) is expected, (root.certificate.subject, domain)
        write_roots(tmp_path, store(east=False))
        await eventually(lambda: _not(let_in(EAST, "east.test")), what="its roots are gone")
        assert await let_in(OWN, "west.test")


async def _not(answer: Awaitable[bool]) -> bool:
    return not await answer


@pytest.mark.parametrize("east", [False, True])
def test_the_secret_is_the_same_for_the_same_roots(east: bool) -> None:
    assert roots_secret(store(east=east)) == roots_secret(store(east=east))
