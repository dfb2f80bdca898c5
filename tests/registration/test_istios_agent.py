"""Istio's agent as a peer: its requests replayed by grpcio over mutual TLS, and the answers that istiod gives.

The State of the World stream, and the request for a certificate by the one that the agent has, were recorded from a
real ``pilot-agent`` (master, August 2026, no Envoy) at this control plane. Delta, and the first request for a
certificate, which shows a token, are as its public code has them: no real agent has sent them here. It has one
stream for Envoy and itself, whose first request has the node. After Envoy's first request for listeners it asks for the
name table and ProxyConfig, without names or node, and then says how the application is. It passes all else on, and
answers name table and ProxyConfig itself, without names.

A second recording was with a join token in its token file (``JWT_POLICY=third-party-jwt``), Delta, and a stock Envoy
below it: the token goes with every certificate request, no certificate does, and the application is ill until Envoy is
ready.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import DownstreamTlsContext
from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)

from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest, IstioCertificateResponse
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.certificates.service import PATH as CSR_PATH
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.resource import CLUSTER, HEALTH, LISTENER, NAME_TABLE, PROXY_CONFIG
from mesh_pilot.model.spiffe import Identity
from tests.registration.test_registered_workloads import GROUP, PROBE, QUICK, SERVICE, caller_of, config, entry
from tests.support.agent_streams import node_of
from tests.support.envoy import eventually
from tests.support.forgery import csr_of, key_pem, new_key
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane

WEB = Identity("cluster.local", "shop", "web")
NODE = node_of(
    "vm-1",
    AUTO_REGISTER_GROUP="web",
    SERVICE_ACCOUNT="web",
    ISTIO_VERSION="1.29.0",
    PILOT_SAN=["istiod.istio-system.svc"],
    CLUSTER_ID="Kubernetes",
    PROXY_CONFIG={"readinessProbe": {"httpGet": {"port": 8080}}},
)
ENVOYS_NODE = node_of(
    "vm-1",
    AUTO_REGISTER_GROUP="web",
    CLUSTER_ID="Kubernetes",
    DNS_CAPTURE="true",
    ENVOY_PROMETHEUS_PORT=15090,
    ENVOY_SKIP_DEPRECATED_LOGS="true",
    ENVOY_STATUS_PORT=15021,
    INSTANCE_IPS="127.0.0.1,192.0.2.2,fd00::2",
    INTERCEPTION_MODE="NONE",
    ISTIO_VERSION="unknown",
    METADATA_DISCOVERY="false",
    NAME="vm-1",
    PILOT_SAN=["127.0.0.1"],
    PROXY_CONFIG={
        "controlPlaneAuthPolicy": "MUTUAL_TLS",
        "readinessProbe": {"httpGet": {"host": "127.0.0.1", "port": 8080, "path": "/"}, "periodSeconds": 1},
    },
    SERVICE_ACCOUNT="web",
    STATIC_LABELS={"app": "web"},
    WORKLOAD_IDENTITY_SOCKET_FILE="socket",
    app="web",
    labels={"app": "web"},
)
"""Recorded from the agent with Envoy; ports that were free ones are the usual ones, and what is the machine's is left
out of PROXY_CONFIG."""
STRICT = """\
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - port: {number: 8081, protocol: HTTP, name: http}
    bind: 127.0.0.1
    defaultEndpoint: "127.0.0.1:8080"
    captureMode: NONE
  egress: [{hosts: ["./none.test"]}]
"""
CLUSTER_HEADER = (("clusterid", "Kubernetes"),)
INTERNAL = 13
"""The gRPC code of its bad reports."""
SECONDS = 20.0


class Agent:
    """The agent's connection, used from a thread. State: its key, its certificate and the roots, as PEM."""

    def __init__(self, address: str, root: bytes) -> None:
        self._address = address
        self.root = root
        self._key = b""
        self._chain = b""

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        own = {"private_key": self._key, "certificate_chain": self._chain} if self._key else {}
        with grpc.secure_channel(self._address, grpc.ssl_channel_credentials(self.root, **own)) as channel:
            yield channel

    @classmethod
    def without_certificate(cls, plane: ControlPlane) -> Agent:
        return cls(plane.addresses.secure_grpc, b"".join(plane.state.trust.own().roots))

    def forget(self) -> None:
        """Have no certificate on the next connection."""
        self._key = self._chain = b""

    def enrol(self, token: str = "") -> list[str]:
        """Have a key signed, as the CA client does: a day asked for, the cluster's name, a bearer token unless it has a
        certificate."""
        key = new_key()
        request = IstioCertificateRequest(csr=csr_of(key, uris=[str(WEB)]).decode(), validity_duration=24 * 3600)
        with self.channel() as channel:
            ask = channel.unary_unary(
                CSR_PATH, request_serializer=bytes, response_deserializer=IstioCertificateResponse.parse
            )
            bearer = (("authorization", f"Bearer {token}"),) if token else ()
            metadata = (*bearer, *CLUSTER_HEADER)
            answer = ask(request, metadata=metadata, timeout=SECONDS)
        chain: list[str] = answer.cert_chain
        self._key, self._chain = key_pem(key), "".join(chain[:-1]).encode()
        return chain


class SotwStream:
    """A State of the World stream of the agent. State: the requests under way."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.Queue[DiscoveryRequest | None] = queue.Queue()
        stub: Any = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        call = stub.StreamAggregatedResources
        self._answers = call(iter(self._requests.get, None), metadata=CLUSTER_HEADER, timeout=SECONDS)

    def send(self, type_url: str, **more: Any) -> None:
        self._requests.put(DiscoveryRequest(type_url=type_url, **more))

    def begin(self) -> dict[str, DiscoveryResponse]:
        """Everything up to the first report of the application; the answers by type."""
        self.send(CLUSTER, node=NODE)
        found = {CLUSTER: self.answer()}
        self.send(LISTENER)
        self.send(NAME_TABLE)
        self.send(PROXY_CONFIG)
        self.send(HEALTH)
        while len(found) < 4:
            answer = self.answer()
            found[answer.type_url] = answer
        return found

    def answer(self) -> DiscoveryResponse:
        """The next answer, accepted."""
        found: DiscoveryResponse = next(self._answers)
        self.send(found.type_url, version_info=found.version_info, response_nonce=found.nonce)
        return found

    def report(self, error: str) -> None:
        request = DiscoveryRequest(type_url=HEALTH)
        request.error_detail.code, request.error_detail.message = INTERNAL, error
        self._requests.put(request)

    def end(self) -> None:
        self._requests.put(None)
        self._answers.cancel()


def replay_delta(agent: Agent, node: Node = NODE, error: str = "") -> dict[str, DeltaDiscoveryResponse]:
    """The same over Delta: the report of the application is a Delta request, too. ``error``: it is ill at first."""
    requests: queue.Queue[DeltaDiscoveryRequest | None] = queue.Queue()
    found: dict[str, DeltaDiscoveryResponse] = {}
    with agent.channel() as channel:
        stub: Any = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        answers = stub.DeltaAggregatedResources(iter(requests.get, None), metadata=CLUSTER_HEADER, timeout=SECONDS)
        requests.put(DeltaDiscoveryRequest(type_url=CLUSTER, node=node))
        for type_url in (LISTENER, NAME_TABLE, PROXY_CONFIG):
            requests.put(DeltaDiscoveryRequest(type_url=type_url))
        if error:
            ill = DeltaDiscoveryRequest(type_url=HEALTH)
            ill.error_detail.code, ill.error_detail.message = INTERNAL, error
            requests.put(ill)
        requests.put(DeltaDiscoveryRequest(type_url=HEALTH))
        while len(found) < 4:
            answer = next(answers)
            found[answer.type_url] = answer
            requests.put(DeltaDiscoveryRequest(type_url=answer.type_url, response_nonce=answer.nonce))
        requests.put(None)
        for _ in answers:  # until the plane has read all requests, and ends the stream
            pass
    return found


in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)


def join_token(plane: ControlPlane, folder: Path) -> str:
    tokens = plane.settings.join_tokens.within(folder)
    assert tokens is not None
    return JoinTokens(tokens).create(WEB, timedelta(hours=1)).text


async def enrolled(plane: ControlPlane, folder: Path) -> Agent:
    """An agent with a certificate for a join token, over TLS."""
    agent = Agent.without_certificate(plane)
    await in_thread(agent.enrol, join_token(plane, folder))
    chain = await in_thread(agent.enrol)
    assert len(chain) >= 2 and chain[-1].encode() in plane.state.trust.own().roots, "the root comes last"
    return agent


async def test_its_stream_gets_the_answers_of_istiod_and_its_reports_move_the_endpoint(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP + PROBE)
    with trio.fail_after(60):
        async with (
            running_plane(folder, trust_local=True, registration=QUICK, ca_dir=tmp_path / "ca") as plane,
            caller_of(plane) as caller,
        ):
            assert await caller.begin() == []
            agent = await enrolled(plane, tmp_path / "ca")
            with agent.channel() as channel:
                stream = SotwStream(channel)
                answers = await in_thread(stream.begin)
                (settings,) = answers[PROXY_CONFIG].resources
                roots = [root.decode() for root in plane.state.trust.own().roots]
                assert ProxyConfig.parse(settings.value) == ProxyConfig(ca_certificates_pem=roots)
                assert [table.type_url for table in answers[NAME_TABLE].resources] == [NAME_TABLE]
                await caller.until("127.0.0.1:8081")
                assert entry(plane).annotations["proxy.istio.io/health-checks-enabled"] == "true"
                stream.report("status code was not from [200,400), bad code 503")
                await caller.until()
                stream.send(HEALTH)
                await caller.until("127.0.0.1:8081")
                assert plane.state.xds.status.statistics().connected == 2  # it and the caller: no agents
                stream.end()
            await caller.until()


async def test_the_same_over_delta(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP + PROBE)
    with trio.fail_after(60):
        async with running_plane(folder, trust_local=True, registration=QUICK, ca_dir=tmp_path / "ca") as plane:
            agent = await enrolled(plane, tmp_path / "ca")
            answers = await in_thread(replay_delta, agent)
            assert set(answers) == {CLUSTER, LISTENER, NAME_TABLE, PROXY_CONFIG}
            (settings,) = answers[PROXY_CONFIG].resources
            assert ProxyConfig.parse(settings.resource.value).ca_certificates_pem
            registrar = plane.registrar

            async def has_reported() -> bool:
                return registrar is not None and registrar.statistics().reports == {True: 1}

            await eventually(has_reported, what="the report")


async def test_with_a_token_for_every_certificate_envoy_is_referred_to_its_socket(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP + PROBE, STRICT)
    with trio.fail_after(60):
        async with running_plane(folder, trust_local=True, registration=QUICK, ca_dir=tmp_path / "ca") as plane:
            agent = Agent.without_certificate(plane)
            token = join_token(plane, tmp_path / "ca")
            await in_thread(agent.enrol, token)
            agent.forget()
            await in_thread(agent.enrol, token)
            answers = await in_thread(replay_delta, agent, ENVOYS_NODE, "connect: connection refused")
            listeners = [Listener.FromString(found.resource.value) for found in answers[LISTENER].resources]
            (inbound,) = (found for found in listeners if found.address.socket_address.port_value == 8081)
            contexts = [tls_of(chain.transport_socket.typed_config) for chain in inbound.filter_chains]
            assert contexts and all(context.require_client_certificate.value for context in contexts)
            assert {source for context in contexts for source in secret_sources(context)} == {
                ("default", "sds-grpc"),
                ("ROOTCA", "sds-grpc"),
            }
            registrar = plane.registrar

            async def has_reported_both() -> bool:
                return registrar is not None and registrar.statistics().reports == {False: 1, True: 1}

            await eventually(has_reported_both, what="both reports")


def tls_of(packed: Any) -> DownstreamTlsContext:
    found = DownstreamTlsContext()
    assert packed.Unpack(found), "plaintext under STRICT"
    return found


def secret_sources(context: DownstreamTlsContext) -> Iterator[tuple[str, str]]:
    """The secrets of a context, each with the cluster that serves it."""
    common = context.common_tls_context
    roots = common.combined_validation_context.validation_context_sds_secret_config
    for secret in (*common.tls_certificate_sds_secret_configs, roots):
        (service,) = secret.sds_config.api_config_source.grpc_services
        yield secret.name, service.envoy_grpc.cluster_name
