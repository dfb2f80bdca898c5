"""TLS of Gateway servers next to the mesh's ``tlsDefaults``: a server's own settings are not widened by them."""

from __future__ import annotations

from envoy.extensions.transport_sockets.tls.v3.common_pb2 import TlsParameters

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigTlsConfig, MeshConfigTlsConfigTlsProtocol
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.tls.common import server_tls_parameters

STRONG, WEAK = "ECDHE-ECDSA-AES256-GCM-SHA384", "AES128-SHA"
MESH = MeshConfigTlsConfig(min_protocol_version=MeshConfigTlsConfigTlsProtocol.TLSV1_2, cipher_suites=[WEAK])


def test_ciphers_and_version_of_a_server_replace_those_of_the_mesh() -> None:
    own = api.ServerTlsSettings(
        min_protocol_version=api.ServerTlsSettingsTlsProtocol.TLSV1_3, cipher_suites=[STRONG, "unknown", STRONG]
    )
    found = server_tls_parameters(own, MESH)
    assert list(found.cipher_suites) == [STRONG]
    assert found.tls_minimum_protocol_version == TlsParameters.TLSv1_3


def test_a_server_without_its_own_has_those_of_the_mesh() -> None:
    found = server_tls_parameters(api.ServerTlsSettings(), MESH)
    assert list(found.cipher_suites) == [WEAK]
    assert found.tls_minimum_protocol_version == TlsParameters.TLSv1_2
