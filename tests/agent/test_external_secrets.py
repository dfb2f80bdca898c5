"""A certificate from another SDS server of the machine, such as SPIRE's agent: here a stand-in that speaks alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from envoy.extensions.transport_sockets.tls.v3.tls_spiffe_validator_config_pb2 import SPIFFECertValidatorConfig
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from structlog.testing import capture_logs

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.identity.material import IdentityMaterial
from mesh_pilot.agent.identity.secret_service import SERVICE
from mesh_pilot.agent.identity.signing import request_certificate
from mesh_pilot.agent.settings import CredentialSettings, PlaneSettings
from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, ServerStream, Status, open_listeners, serve
from tests.agent.identities import Machine, plane_of, running
from tests.agent.test_identity_folder import material

pytestmark = pytest.mark.plane


@attrs.frozen
class SdsAgent:
    """It knows the workload by its socket, names its secrets ``default`` and ``ROOTCA``, and sends all at once."""

    held: Observable[IdentityMaterial]
    nodes: list[str] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)

    def __mapping__(self) -> Mapping[str, Handler]:
        handler = Handler(self._stream, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
        return {f"{SERVICE}/StreamSecrets": handler}

    async def _stream(self, stream: ServerStream[DiscoveryRequest, DiscoveryResponse]) -> None:
        first = await stream.recv_message()
        assert first is not None
        self.nodes.append(first.node.id)
        if unknown := set(first.resource_names) - {"default", "ROOTCA"}:
            raise GRPCError(Status.INVALID_ARGUMENT, f"workload is not authorized for {unknown}")
        version = 0
        async for held in self.held.changes():
            version += 1
            own = Secret(name="default")
            own.tls_certificate.certificate_chain.inline_bytes = held.chain
            own.tls_certificate.private_key.inline_bytes = held.key
            roots = Secret(name="ROOTCA")
            validator = SPIFFECertValidatorConfig()
            validator.trust_domains.add(name="cluster.local").trust_bundle.inline_bytes = held.roots
            roots.validation_context.custom_validator_config.name = "envoy.tls.cert_validator.spiffe"
            roots.validation_context.custom_validator_config.typed_config.Pack(validator)
            response = DiscoveryResponse(type_url=first.type_url, version_info=str(version), nonce=str(version))
            for secret in (own, roots):
                if secret.name in first.resource_names:
                    response.resources.add().Pack(secret)
            await stream.send_message(response)
            answer = await stream.recv_message()
            assert answer is not None and answer.response_nonce == str(version)
            if answer.HasField("error_detail"):
                self.errors.append(answer.error_detail.message)


@asynccontextmanager
async def sds_agent(socket: Path, held: IdentityMaterial) -> AsyncIterator[SdsAgent]:
    agent = SdsAgent(Observable(held))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, [agent], await open_listeners(f"unix://{socket}")))
        yield agent
        nursery.cancel_scope.cancel()


async def test_its_certificate_is_ours_towards_the_control_plane_and_stays_while_it_is_away(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    socket = tmp_path / "spire.sock"
    async with plane_of(machine) as plane:
        machine.new_token()
        async with running(machine.identity(plane.addresses.secure_grpc)) as other:
            with trio.fail_after(30):
                signed = await other.material.wait_for(lambda value: value is not None)
        assert signed is not None
        own = WorkloadIdentity(
            CredentialSettings(sds_socket=socket),
            PlaneSettings((Pilot.parse(plane.addresses.secure_grpc),), ca=machine.root),
            machine.folders,
            node_id="sidecar~10.0.0.1~web.shop~shop.svc.cluster.local",
        )
        with capture_logs() as logs:
            async with running(own):
                await trio.sleep(0.2)
                assert own.material.value is None
                (line,) = [line for line in logs if line["event"] == "SDS server away"]
                assert line["reason"] == "there is no such socket yet" and line["socket"] == str(socket)
                with trio.fail_after(30):
                    async with sds_agent(socket, signed) as agent:
                        held = await own.material.wait_for(lambda value: value is not None)
                        assert held is not None and (held.chain, held.key) == (signed.chain, signed.key)
                        assert agent.nodes == ["sidecar~10.0.0.1~web.shop~shop.svc.cluster.local"]
                    # It alone proves who asks.
                    key_less = await request_certificate(
                        plane.addresses.secure_grpc, _csr(), tls=own.tls(), server_name=None
                    )
                    assert key_less[0].startswith(b"-----BEGIN CERTIFICATE")
                    renewed = material()
                    async with sds_agent(socket, renewed) as agent:
                        await own.material.wait_for(lambda value: value is not None and value.chain == renewed.chain)
                        broken = attrs.evolve(material(), key=renewed.key)
                        agent.held.set(broken)
                        while not agent.errors:  # noqa: ASYNC110  the other side has no event for it
                            await trio.sleep(0.01)
                        assert agent.errors == ["the certificate is for another key"]
                        assert own.material.value is not None and own.material.value.chain == renewed.chain
        assert "PRIVATE" not in str(logs)


def _csr() -> bytes:
    from mesh_pilot.agent.identity.material import new_key, new_request

    return new_request(new_key("EC"))[1]
