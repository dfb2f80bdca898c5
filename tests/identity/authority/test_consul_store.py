"""The CA's files in Consul's KV store: one root for all replicas, encrypted, by a token that may write nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from click.testing import CliRunner

from mesh_pilot.cli import cli
from mesh_pilot.consul.identity.ca_store import ConsulStore, ConsulStoreSettings
from mesh_pilot.consul.source import Agent
from mesh_pilot.identity.authority.encryption import read_keys
from mesh_pilot.identity.authority.store import StoreConflict, StoredFiles, StoreError
from tests.support.consul import Consul, closed_consul, token_for
from tests.support.planes import running_plane

pytestmark = pytest.mark.process


EMPTY = StoredFiles().version
KEY = "mesh/ca"
ONE, TWO = {"ca-key.pem": b"-----BEGIN PRIVATE KEY-----one\n"}, {"ca-key.pem": b"two", "root-cert.pem": b"root"}
RULES = f'key "{KEY}" {{ policy = "write" }}'

Ports = Callable[[int], list[int]]


@asynccontextmanager
async def stage(folder: Path, ports: list[int]) -> AsyncIterator[tuple[Consul, ConsulStoreSettings]]:
    """A Consul that lets nobody do anything without a token, and settings with a token for the entry alone."""
    async with closed_consul(folder, ports) as consul:
        secret = await token_for(consul, "ca", RULES)
        token, encryption = folder / "token", folder / "encryption"
        token.write_text(secret)
        write_key(encryption, "11" * 32)
        agent = Agent(consul.address, token_file=token)
        yield consul, ConsulStoreSettings(key=KEY, agent=agent, encryption_file=encryption)


def write_key(path: Path, *keys: str) -> None:
    path.touch(mode=0o600)
    path.write_text("\n".join(keys) + "\n")


@pytest.mark.smoke
async def test_the_store_is_shared_and_consul_never_sees_the_key(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as (consul, settings):
        one, other = ConsulStore(settings), ConsulStore(settings)
        assert (await one.read()).files == {}
        await one.write(ONE, EMPTY)
        assert (await other.read()).files == ONE
        raw = (await consul.ask("GET", f"/v1/kv/{KEY}", params={"raw": ""})).text
        assert json.loads(raw)["encryption"] == "AES-256-GCM"
        assert "PRIVATE" not in raw


async def test_of_two_replicas_that_start_at_once_one_makes_the_root(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as (_, settings):
        outcomes: list[str] = []

        async def start(number: int) -> None:
            store = ConsulStore(settings)
            try:
                await store.write({"ca-key.pem": str(number).encode()}, (await store.read()).version)
                outcomes.append("made")
            except StoreConflict:
                outcomes.append("conflict")

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(start, number)
        assert sorted(outcomes) == ["conflict"] * 7 + ["made"]


async def test_a_write_over_what_was_not_read_is_a_conflict(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as (_, settings):
        store = ConsulStore(settings)
        await store.write(ONE, EMPTY)
        await store.write(TWO, StoredFiles(ONE).version)
        with pytest.raises(StoreConflict):
            await store.write(ONE, StoredFiles(ONE).version)
        assert (await store.read()).files == TWO


async def test_a_change_wakes_whoever_waits(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as (_, settings):
        one, other = ConsulStore(settings), ConsulStore(settings)
        await one.write(ONE, EMPTY)
        version = (await other.read()).version
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other.changed, version)
                await one.write(TWO, version)
        assert (await other.read()).files == TWO


async def test_what_another_wrote_into_the_entry_is_refused(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as (consul, settings):
        store = ConsulStore(settings)
        await consul.put(KEY, "rubbish")
        with pytest.raises(StoreError, match="not a CA of mesh-pilot's"):
            await store.read()
        await consul.delete(KEY)
        await ConsulStore(attrs.evolve(settings, encryption_file=None, allow_plaintext=True)).write(ONE, EMPTY)
        with pytest.raises(StoreError, match="not encrypted although a key is given"):
            await store.read()


async def test_another_key_does_not_decrypt_and_a_new_key_goes_before_the_old_one(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with stage(tmp_path, free_ports(4)) as (_, settings):
        store = ConsulStore(settings)
        await store.write(ONE, EMPTY)
        assert settings.encryption_file is not None
        write_key(settings.encryption_file, "22" * 32)
        with pytest.raises(StoreError, match="cannot be decrypted"):
            await store.read()
        write_key(settings.encryption_file, "22" * 32, "11" * 32)
        await store.write(TWO, (await store.read()).version)
        write_key(settings.encryption_file, "22" * 32)
        assert (await store.read()).files == TWO
        moved = attrs.evolve(settings, encryption_file=None)
        with pytest.raises(StoreError, match="--ca-key-encryption-file"):
            await ConsulStore(moved).read()


async def test_a_token_that_may_not_and_an_agent_that_is_away_are_errors_in_one_line(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with stage(tmp_path, free_ports(4)) as (consul, settings):
        other = ConsulStore(attrs.evolve(settings, key="mesh/other"))
        with pytest.raises(StoreError, match=r"KV entry mesh/other at http.*Permission denied") as raised:
            await other.write(ONE, EMPTY)
        assert "PRIVATE" not in str(raised.value)
        await consul.kill()
        with pytest.raises(StoreError, match="KV entry mesh/ca"):
            await ConsulStore(settings).read()


async def test_two_planes_that_start_at_once_have_one_root(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as (_, settings):
        roots: list[str] = []

        async def start() -> None:
            async with (
                running_plane(tmp_path, ca_store=settings) as plane,
                httpx.AsyncClient(trust_env=False, timeout=60) as client,
            ):
                page = await client.get(f"http://{plane.addresses.http}/debug/ca")
                roots.append(page.json()["root"]["sha256"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            nursery.start_soon(start)
        assert len(roots) == 2
        assert len(set(roots)) == 1


async def test_the_commands_work_on_the_entry_as_on_a_folder(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as (consul, settings):

        async def ca(*words: str) -> str:
            flags = ["--consul-server-url", consul.address, "--ca-consul-key", KEY]
            flags += ["--ca-consul-token-file", f"{tmp_path}/token"]
            flags += ["--ca-key-encryption-file", f"{tmp_path}/encryption"]
            command = partial(CliRunner().invoke, cli, ["ca", *words, *flags])
            result = await trio.to_thread.run_sync(command)
            assert result.exit_code == 0, result.output
            return result.output

        assert f"a root was made in KV entry {KEY}" in await ca("init")
        await ca("rotate", "begin")
        assert (await ca("root")).count("BEGIN CERTIFICATE") == 2
        await ca("rotate", "switch", "--force")
        await ca("rotate", "finish", "--force")
        assert (await ca("root")).count("BEGIN CERTIFICATE") == 1
        assert "rotation  steady" in await ca("status")
        assert "root-cert.pem" in (await ConsulStore(settings).read()).files


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "say where the CA is: --ca-dir, --state-dir, or --ca-consul-key"),
        (("--ca-dir", "ca", "--ca-consul-key", KEY), "exclude each other"),
        (("--ca-consul-key", KEY), "needs an agent to ask: --consul-server-url"),
        (("--ca-consul-key", KEY, "--consul-server-url", "127.0.0.1:1"), "would be stored in plaintext"),
        (("--ca-consul-key", KEY, "--consul-server-url", "x://y"), "'x://y' is not an address of a Consul agent"),
    ],
)
def test_a_command_that_does_not_say_where_the_ca_is_says_what_is_missing(flags: tuple[str, ...], said: str) -> None:
    result = CliRunner(env={"CONSUL_HTTP_ADDR": None}).invoke(cli, ["ca", "root", *flags])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_plaintext_needs_so_many_words() -> None:
    settings = ConsulStoreSettings(key=KEY, agent=Agent())
    assert "plaintext" in settings.problem()
    assert attrs.evolve(settings, allow_plaintext=True).problem() == ""
    assert attrs.evolve(settings, encryption_file=Path("key")).problem() == ""


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("zz", 0o600, "hexadecimal"),
        ("11" * 31, 0o600, "hexadecimal"),
        ("", 0o600, "hexadecimal"),
        ("11" * 32, 0o644, "chmod"),
    ],
)
async def test_a_bad_encryption_key_is_refused_without_its_text(
    text: str, mode: int, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(StoreError, match=says) as raised:
        read_keys(file)
    assert not text or text not in str(raised.value)
