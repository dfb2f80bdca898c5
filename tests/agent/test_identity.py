"""A workload's identity against a running control plane: obtained, renewed, kept, and what goes wrong on the way."""

from __future__ import annotations

import gc
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from envoy.extensions.transport_sockets.tls.v3.tls_spiffe_validator_config_pb2 import SPIFFECertValidatorConfig
from structlog.testing import capture_logs

from mesh_pilot.agent.identity.folder import CHAIN, PENDING
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.identity.material import certificates_in, joined_roots
from tests.agent.identities import WEB, Machine, plane_of, running
from tests.agent.test_identity_folder import material
from tests.support.envoy import eventually

pytestmark = pytest.mark.plane


async def test_a_token_gives_a_certificate_which_a_restart_uses_without_any_control_plane(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        text = machine.new_token(uses=1)
        async with running(machine.identity("127.0.0.1:1", plane.addresses.secure_grpc)) as own:
            with trio.fail_after(30):
                held = await own.material.wait_for(lambda value: value is not None)
                await own.settled.wait_for(bool)
            assert held is not None and held.identity == str(WEB)
            assert held.begins <= datetime.now(UTC) < held.ends
            key = load_pem_private_key(held.key, None)
            assert key.public_key() == x509.load_pem_x509_certificate(held.chain).public_key()
            assert text not in repr(own) and "PRIVATE" not in repr(own) + repr(held)
            await eventually(lambda: (machine.kept / CHAIN).exists() and not (machine.kept / PENDING).exists())
            assert own.call_metadata() == {}
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in machine.kept.iterdir()}
        assert modes == {"key.pem": 0o600, "cert-chain.pem": 0o644, "root-cert.pem": 0o644}
    machine.token_file.unlink()
    async with running(machine.identity("127.0.0.1:1")) as own:
        assert own.settled.value and own.material.value == held
        assert own.statistics().failures == 0


async def test_rsa_and_the_lifetime_are_as_asked_for(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        machine.new_token()
        own = machine.identity(plane.addresses.secure_grpc, key_type="RSA", lifetime=3600.0)
        async with running(own):
            with trio.fail_after(30):
                held = await own.material.wait_for(lambda value: value is not None)
            assert held is not None
            assert isinstance(load_pem_private_key(held.key, None), rsa.RSAPrivateKey)
            assert (held.ends - datetime.now(UTC)).total_seconds() <= 3600


async def test_a_short_certificate_is_renewed_by_itself_with_a_fresh_key(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        machine.new_token(uses=1)
        own = machine.identity(plane.addresses.secure_grpc, lifetime=4.0)
        async with running(own):
            keys = []
            with trio.fail_after(60):
                async for held in own.material.changes():
                    keys += [held.key] if held is not None else []
                    if len(keys) == 3:
                        break
            assert len(set(keys)) == 3
            assert machine.uses() == [1]


async def test_roots_of_the_control_plane_count_unless_they_are_older_than_the_certificate(tmp_path: Path) -> None:
    """What it says is kept for a start without any."""
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        machine.new_token()
        own = machine.identity(plane.addresses.secure_grpc)
        async with running(own):
            with trio.fail_after(30):
                held = await own.material.wait_for(lambda value: value is not None)
            assert held is not None
            own.set_trust_bundle((material().roots.decode(),))
            own.set_trust_bundle(("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n",))
            assert shown(own).validation_context.trusted_ca.inline_bytes.count(b"BEGIN") == 2

            validator = SPIFFECertValidatorConfig()
            validator.trust_domains.add(name="cluster.local").trust_bundle.inline_bytes = held.roots
            validator.trust_domains.add(name="other.test").trust_bundle.inline_bytes = material().roots
            secret = Secret(name="ROOTCA")
            secret.validation_context.custom_validator_config.typed_config.Pack(validator)
            own.set_root_secret(secret.SerializeToString())
            assert shown(own) == secret, "as it is, with the borders of trust domains"
            assert certificates_in(own._roots()) == certificates_in(held.roots), "control planes are of our own"
            next_root = material().roots
            validator.trust_domains[0].trust_bundle.inline_bytes += next_root
            secret.validation_context.custom_validator_config.typed_config.Pack(validator)
            own.set_root_secret(secret.SerializeToString())
            assert own._roots() == joined_roots(held.roots, next_root), "the next one signs for them, too"
            own.set_root_secret(b"\xff")
            assert shown(own) == secret
            await eventually((machine.kept / "roots-secret.bin").exists)
            await eventually((machine.kept / CHAIN).exists)
    async with running(machine.identity("127.0.0.1:1")) as again:
        assert shown(again) == secret
        newer = material()
        again.material.set(newer)
        await eventually(lambda: shown(again).validation_context.trusted_ca.inline_bytes == newer.roots)


def shown(own: WorkloadIdentity) -> Secret:
    """The roots that Envoy is given."""
    return Secret.FromString(own._secrets.value["ROOTCA"].body)


async def test_neither_key_nor_token_is_in_a_log_line_or_in_the_repr_of_a_value(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with capture_logs() as logs:
        async with plane_of(machine) as plane:
            text = machine.new_token()
            own = machine.identity(plane.addresses.secure_grpc, lifetime=4.0)
            async with running(own):
                with trio.fail_after(30):
                    held = await own.material.wait_for(lambda value: value is not None)
                    assert held is not None
                    await own.material.wait_for(lambda value: value is not held)
                assert own.material.value is not None
                keys = [held.key.decode(), own.material.value.key.decode()]
                secrets = [text, *(line for key in keys for line in key.splitlines()[1:-1])]
                values = [
                    each for each in gc.get_objects() if str(type(each).__module__).startswith("mesh_pilot.agent")
                ]
                assert len(values) > 10
                for value in values:
                    assert not [secret for secret in secrets if secret in repr(value)], type(value)
    assert not [secret for secret in secrets if secret in str(logs)]
