"""A machine with all that a VM has: the C library's resolver, redirection, the agent with its DNS, Envoy, and Consul.

Two TCP services of Consul on one port: only their names, by virtual addresses, tell Envoy which one is meant.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dns
import pytest
import trio

from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from tests.support.binaries import require_binary
from tests.support.consul import real_consul
from tests.support.envoy import eventually
from tests.support.namespaces import ROOT, Machine, machines
from tests.support.planes import running_plane

PORT = 5432
APPLICATION = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
RESOLVE = """
import json, socket, sys
try:
    print(json.dumps(sorted({found[4][0] for found in socket.getaddrinfo(sys.argv[1], 80, type=socket.SOCK_STREAM)})))
except socket.gaierror as error:
    print(json.dumps([error.strerror]))
"""
NAME_SERVER = """
import socket, sys
sys.path.insert(0, sys.argv[1])
import dns.message, dns.rrset
sock = socket.socket(type=socket.SOCK_DGRAM)
sock.bind(("10.77.0.2", 53))
print("ready", flush=True)
while True:
    packet, sender = sock.recvfrom(4096)
    query = dns.message.from_wire(packet)
    response = dns.message.make_response(query)
    name = query.question[0].name
    if name.to_text() != "www.example.":
        response.set_rcode(3)
    elif query.question[0].rdtype == 1:
        response.answer.append(dns.rrset.from_text(name, 60, "IN", "A", "192.0.2.80"))
    sock.sendto(response.to_wire(), sender)
"""


@contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program for the length of the block."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with log.open("wb") as file, subprocess.Popen(command, env=env, stdout=file, stderr=file) as running:
        try:
            yield running
        finally:
            running.kill()


@contextmanager
def resolv_conf(machine: Machine, text: str) -> Iterator[Path]:
    """The machine's file of name servers, which ``ip netns exec`` puts in its place."""
    folder = Path("/etc/netns") / machine.name
    folder.mkdir(parents=True)
    try:
        (folder / "resolv.conf").write_text(text)
        yield folder / "resolv.conf"
    finally:
        shutil.rmtree(folder)


@pytest.mark.smoke
@pytest.mark.envoy
async def test_two_tcp_services_of_one_port_are_told_apart_by_their_names(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")

    with machines(2) as (web, backends), tempfile.TemporaryDirectory() as short:
        socket = Path(short) / "plane.sock"
        for address in ("10.77.0.12", "10.77.0.22"):
            backends.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
            backends.listen("tcp", PORT, host=address)

        def resolved(name: str, options: str) -> list[str]:
            done = web.run("env", f"RES_OPTIONS={options}", *APPLICATION, sys.executable, "-c", RESOLVE, name)
            return list(json.loads(done.stdout))

        async def found(name: str, options: str = "") -> list[str]:
            return await trio.to_thread.run_sync(resolved, name, options)

        async with (
            real_consul(tmp_path, free_ports(4)) as consul,
            running_plane(
                grpc_addr=f"unix://{socket}",
                registries=(ConsulRegistry((ConsulSettings(agent=Agent(consul.address)),)),),
            ),
        ):
            for name, address in (("db-a", "10.77.0.12"), ("db-b", "10.77.0.22")):
                await consul.register(name, address=address, port=PORT, meta={"protocol": "tcp"})
            virtual = {"virtual": {"Address": "10.77.9.9", "Port": PORT}}
            await consul.register("db-c", address="10.77.0.12", port=PORT, TaggedAddresses=virtual)
            libraries = str(Path(dns.__file__).parents[1])
            at_backends = ("ip", "netns", "exec", backends.name, sys.executable, "-c", NAME_SERVER, libraries)
            at_web = ("ip", "netns", "exec", web.name, sys.executable, "-m", "mesh_pilot.cli")
            with (
                resolv_conf(web, "nameserver 10.77.0.2\nsearch corp.example\n"),
                process(tmp_path / "name-server.log", *at_backends),
                process(
                    tmp_path / "agent.log", *at_web, "proxy", "sidecar", "--plaintext", f"--pilot=unix://{socket}",
                    f"--ip={web.ipv4}", "--name=web-1", "--dns", f"--state-dir={short}/state", f"--run-dir={short}/run",
                ),
            ):  # fmt: skip
                web.mesh_pilot("iptables", "apply", "--proxy-uid=0", "--proxy-gid=0", "--redirect-dns")
                try:

                    async def both() -> bool:
                        return [len(await found(f"db-{x}.service.consul")) for x in "ab"] == [1, 1] and (
                            (await found("db-a.service.consul"))[0].startswith("241.")
                        )

                    await eventually(both, seconds=60)
                    addresses = {name: (await found(f"{name}.service.consul"))[0] for name in ("db-a", "db-b")}
                    assert addresses["db-a"] != addresses["db-b"]
                    assert await found("DB-A.service.CONSUL") == [addresses["db-a"]]
                    assert await found("db-a.service.consul.corp.example") == [addresses["db-a"]]
                    assert await found("db-a.service.consul", "use-vc") == [addresses["db-a"]]  # over TCP
                    assert await found("db-c.virtual.consul") == await found("db-c.service.consul") == ["10.77.9.9"]
                    assert await found("www.example") == ["192.0.2.80"]
                    assert await found("none.example") == ["Name or service not known"]

                    async def answers() -> bool:
                        said = await trio.to_thread.run_sync(web.ask, addresses["db-a"], PORT)
                        return "local" in said

                    await eventually(answers, seconds=60)
                    for name, address in (("db-a", "10.77.0.12"), ("db-b", "10.77.0.22")):
                        assert web.ask(addresses[name], PORT)["local"] == f"{address} {PORT}"
                except BaseException:
                    print((tmp_path / "agent.log").read_text()[-6000:])
                    print((tmp_path / "name-server.log").read_text()[-2000:])
                    raise
