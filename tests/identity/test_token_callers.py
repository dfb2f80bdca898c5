"""Callers with tokens of others at a whole control plane: a token gets a certificate, for a key that stays at home."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog.testing
from cryptography import x509

from mesh_pilot.agent.bootstrap.envoy_bootstrap import ClientTls, EnvoyNode, envoy_bootstrap
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.app.settings import StartError
from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
from mesh_pilot.model.proxy import Interception
from mesh_pilot.net.rpc import CertificateFiles
from tests.identity.signing import create_certificate, names, new_csr, request_of
from tests.identity.test_jwt import BARE_RULE, EC, key_set, token
from tests.support.binaries import require_binary
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.planes import running_plane

WEB = "spiffe://cluster.local/ns/shop/sa/web"


@asynccontextmanager
async def plane_with_rules(folder: Path, *rules: object) -> AsyncIterator[tuple[ControlPlane, Path]]:
    """A control plane that believes issuers, and the CA of its certificate."""
    (folder / "config").mkdir()
    (folder / "rules.json").write_text(json.dumps(rules))
    server = write_certificates(folder, "server")
    tls = CertificateFiles(certificate=server.certificate, key=server.key, trusted=server.ca)
    settings = ForeignTokenSettings(jwt_rules=folder / "rules.json")
    async with running_plane(folder / "config", tls=tls, foreign_tokens=settings) as plane:
        yield plane, server.ca


def now(**claims: Any) -> str:
    """A token that is good now, but for these claims."""
    return token(**{"iat": time.time() - 5, "exp": time.time() + 600, **claims})


@pytest.mark.plane
async def test_a_token_gets_a_certificate_for_a_key_that_stays_where_it_was_made(tmp_path: Path) -> None:
    async with plane_with_rules(tmp_path, {**BARE_RULE, "jwks": key_set(EC)}) as (plane, ca):

        async def ask(text: str, uri: str = WEB) -> list[str]:
            metadata = (("authorization", f"Bearer {text}"),)
            request = request_of(new_csr(names(uri)))
            return await create_certificate(plane.addresses.secure_grpc, request, ca=ca, metadata=metadata)

        chain = await ask(now())
        leaf = x509.load_pem_x509_certificate(chain[0].encode())
        assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names(WEB)

        wrong = now(exp=time.time() - 60)
        with structlog.testing.capture_logs() as lines, pytest.raises(grpc.RpcError) as refused:
            await ask(wrong)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED and "expired" in refused.value.details()
        denials = plane.state.callers.authentication.denials
        assert denials.counts["jwt", "expired"] == 1
        assert wrong not in f"{lines}{refused.value.details()}{denials.latest}"

        with pytest.raises(grpc.RpcError) as stolen:
            await ask(now(), uri=WEB.replace("web", "admin"))
        assert stolen.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_rules_that_are_wrong_end_the_start_with_a_line(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"rules.json: \[0\].audiences is missing"):
        async with plane_with_rules(tmp_path, {"issuer": "https://login.example.com"}):
            raise AssertionError


@pytest.mark.smoke
@pytest.mark.envoy
@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_an_envoy_without_agent_sends_its_token_by_its_bootstrap(tmp_path: Path, delta: bool) -> None:
    require_binary("envoy")
    async with plane_with_rules(tmp_path, {**BARE_RULE, "jwks": key_set(EC)}) as (plane, ca):
        tls = ClientTls(ca, ca, ca)
        node = EnvoyNode("web-1", "shop", "127.0.0.2", interception=Interception.NONE)
        bootstrap: Any = envoy_bootstrap(node, plane.addresses.secure_grpc, delta=delta, tls=tls)
        (cluster,) = bootstrap["static_resources"]["clusters"]
        del cluster["transport_socket"]["typed_config"]["common_tls_context"]["tls_certificates"]
        token = [{"key": "authorization", "value": f"Bearer {now()}"}]
        reports = bootstrap["cluster_manager"]["load_stats_config"]
        for (service,) in (each["grpc_services"] for each in (bootstrap["dynamic_resources"]["ads_config"], reports)):
            service["initial_metadata"] = token
        async with running_envoy(bootstrap, tmp_path) as envoy:
            registry = plane.state.xds.status

            async def is_known() -> bool:
                return any(c.proxy is not None and c.proxy.identity == WEB for c in registry.connections())

            await eventually(is_known, what="it is known as web")
            assert await envoy.rejected() == {}
        assert plane.state.callers.authentication.accepted["jwt"] >= 1
        assert plane.state.callers.authentication.denials.counts == {}
