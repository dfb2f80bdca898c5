"""A workload's identity against a running control plane: obtained, renewed, kept, and what goes wrong on the way."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from mesh_pilot.agent.identity.folder import CHAIN, PENDING
from tests.agent.identities import WEB, Machine, plane_of, running
from tests.support.envoy import eventually


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
