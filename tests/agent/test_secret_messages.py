"""The messages that the agent writes and reads by fields are those of the generated classes."""

from __future__ import annotations

from datetime import UTC, datetime

from envoy.extensions.transport_sockets.tls.v3 import common_pb2, secret_pb2, tls_spiffe_validator_config_pb2
from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.identity import credentials, signing
from mesh_pilot.agent.identity.material import IdentityMaterial
from mesh_pilot.agent.identity.secret_stream import DeltaSecretStream, SdsCounts, SecretStream
from mesh_pilot.agent.identity.secrets import (
    certificate_secret,
    file_secret,
    is_roots_secret,
    own_roots,
    read_secret,
    roots_secret_of,
)
from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest, IstioCertificateResponse
from mesh_pilot.base.protowire import field
from mesh_pilot.identity.certificates import service as certificate_service
from mesh_pilot.identity.tokens import join_tokens
from mesh_pilot.model.resource import SECRET
from tests.agent.test_identity_folder import material

PEM = b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
MATERIAL = IdentityMaterial("spiffe://a/ns/b/sa/c", b"key", b"chain", PEM, NOW, NOW)


def test_a_request_for_a_certificate_and_its_answer() -> None:
    assert signing.PATH == certificate_service.PATH
    assert credentials.JOIN_TOKEN_PREFIX == join_tokens.PREFIX
    for seconds in (0, 1, 86400):
        expected = IstioCertificateRequest(csr="text", validity_duration=seconds)
        assert IstioCertificateRequest.parse(signing.encode_request(b"text", seconds)) == expected
    answer = bytes(IstioCertificateResponse(cert_chain=["leaf", "root"]))
    assert signing.decode_answer(answer) == [b"leaf", b"root"]


def test_secrets() -> None:
    own = secret_pb2.Secret.FromString(certificate_secret(MATERIAL).body)
    assert own.name == "default"
    assert own.tls_certificate.certificate_chain.inline_bytes == b"chain"
    assert own.tls_certificate.private_key.inline_bytes == b"key"
    assert b"key" not in repr(certificate_secret(MATERIAL)).encode()
    roots = secret_pb2.Secret.FromString(roots_secret_of(PEM).body)
    assert (roots.name, roots.validation_context.trusted_ca.inline_bytes) == ("ROOTCA", PEM)
    files = file_secret("file-cert:/a/chain.pem~/a/key.pem")
    assert files is not None
    pair = secret_pb2.Secret.FromString(files.body).tls_certificate
    assert (pair.certificate_chain.filename, pair.private_key.filename) == ("/a/chain.pem", "/a/key.pem")
    files = file_secret("file-root:/a/root.pem")
    assert files is not None
    assert secret_pb2.Secret.FromString(files.body).validation_context.trusted_ca.filename == "/a/root.pem"
    for name in ("default", "file-cert:a", "file-cert:~b", "file-root:", "kubernetes://edge"):
        assert file_secret(name) is None


def test_foreign_secrets_are_read() -> None:
    first, second = material().roots, material().roots
    one = secret_pb2.Secret(name="default")
    one.tls_certificate.certificate_chain.inline_string = "chain"
    one.tls_certificate.private_key.inline_bytes = b"key"
    found = read_secret(one.SerializeToString())
    assert (found.name, found.chain, found.key, found.is_validation) == ("default", b"chain", b"key", False)
    validator = tls_spiffe_validator_config_pb2.SPIFFECertValidatorConfig()
    validator.trust_domains.add(name="a").trust_bundle.inline_bytes = first
    validator.trust_domains.add(name="b").trust_bundle.inline_string = second.decode()
    two = secret_pb2.Secret(name="ROOTCA", validation_context=common_pb2.CertificateValidationContext())
    two.validation_context.custom_validator_config.typed_config.Pack(validator)
    assert read_secret(two.SerializeToString()).roots == first + second
    assert is_roots_secret(two.SerializeToString())
    assert own_roots(two.SerializeToString(), "b") == second
    assert not is_roots_secret(one.SerializeToString())
    assert not is_roots_secret(b"\xff")


def test_roots_that_tls_could_not_load_are_none() -> None:
    """They would be kept on disk, and no control plane could be verified any more."""
    assert is_roots_secret(roots_secret_of(material().roots).body)
    for bad in (PEM, material().roots + PEM, b"nothing"):
        assert not is_roots_secret(roots_secret_of(bad).body)
    cut = field(1, b"ROOTCA") + field(4, field(12, b"\xff" + material().roots))
    assert not is_roots_secret(cut), "it has certificates, but is not a message"


SECRETS = {"default": certificate_secret(MATERIAL), "ROOTCA": roots_secret_of(PEM)}


@given(st.lists(st.sampled_from(["default", "ROOTCA", "file-root:/x", "file-root:/y"]), min_size=1, unique=True))
def test_streams_speak_what_generated_messages_say(names: list[str]) -> None:
    stream = SecretStream(SdsCounts())
    sent = stream.request(DiscoveryRequest(type_url=SECRET, resource_names=names).SerializeToString(), SECRETS)
    assert sent is not None
    response = DiscoveryResponse.FromString(sent)
    assert response.type_url == SECRET and {each.type_url for each in response.resources} == {SECRET}
    assert [secret_pb2.Secret.FromString(each.value).name for each in response.resources] == names
    answer = DiscoveryRequest(
        type_url=SECRET, resource_names=names, version_info=response.version_info, response_nonce=response.nonce
    )
    assert stream.request(answer.SerializeToString(), SECRETS) is None

    delta = DeltaSecretStream(SdsCounts())
    request = DeltaDiscoveryRequest(type_url=SECRET, resource_names_subscribe=names)
    sent = delta.request(request.SerializeToString(), SECRETS)
    assert sent is not None
    changes = DeltaDiscoveryResponse.FromString(sent)
    assert changes.type_url == SECRET and [each.name for each in changes.resources] == names
    held = {each.name: each.version for each in changes.resources}
    assert [secret_pb2.Secret.FromString(each.resource.value).name for each in changes.resources] == names
    refused = DeltaDiscoveryRequest(
        type_url=SECRET, response_nonce=changes.nonce, error_detail=Status(message="bad key")
    )
    assert delta.request(refused.SerializeToString(), SECRETS) is None
    assert [event["reason"] for event in delta.events] == ["bad key"]

    resumed = DeltaSecretStream(SdsCounts())
    request = DeltaDiscoveryRequest(type_url=SECRET, resource_names_subscribe=names, initial_resource_versions=held)
    assert resumed.request(request.SerializeToString(), SECRETS) is None, "it has all of them"


def test_a_made_up_nonce_before_the_first_answer_answers_nothing() -> None:
    asked = DiscoveryRequest(type_url=SECRET, resource_names=["default"], response_nonce="made up")
    assert SecretStream(SdsCounts()).request(asked.SerializeToString(), SECRETS) is not None
    delta = DeltaDiscoveryRequest(type_url=SECRET, resource_names_subscribe=["default"], response_nonce="made up")
    assert DeltaSecretStream(SdsCounts()).request(delta.SerializeToString(), SECRETS) is not None


def test_names_that_a_delta_client_adds_beside_a_late_ack_are_answered() -> None:
    counts = SdsCounts()
    stream = DeltaSecretStream(counts)
    asked = DeltaDiscoveryRequest(type_url=SECRET, resource_names_subscribe=["default"])
    first = stream.request(asked.SerializeToString(), SECRETS)
    assert first is not None
    stream.request(asked.SerializeToString(), SECRETS)
    late = DeltaDiscoveryRequest(
        type_url=SECRET,
        response_nonce=DeltaDiscoveryResponse.FromString(first).nonce,
        resource_names_subscribe=["ROOTCA"],
    )
    answer = stream.request(late.SerializeToString(), SECRETS)
    assert answer is not None
    assert [each.name for each in DeltaDiscoveryResponse.FromString(answer).resources] == ["ROOTCA"]
    assert counts.accepted == 0
