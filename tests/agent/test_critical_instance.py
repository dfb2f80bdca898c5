"""An instance that Consul calls critical: its inbound listener goes, requests do not fail because of that."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from tests.agent.dns.test_dns_redirected import process
from tests.support.binaries import require_binary
from tests.support.consul import TTL, real_consul
from tests.support.envoy import eventually
from tests.support.namespaces import Machine, machines
from tests.support.planes import running_plane

PORT = 8080
CHAIN = f"0.0.0.0_{PORT}"
APPLICATION = f"""
import http.server, sys, time
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        print("begun", self.path, file=sys.stderr, flush=True)
        time.sleep(float(self.path[1:]))
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"hello")
http.server.ThreadingHTTPServer(("", {PORT}), Answers).serve_forever()
"""
GET = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"
SLOW_SECONDS = 4


@pytest.mark.envoy
async def test_requests_under_way_are_finished_and_new_ones_pass(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")

    with machines(2) as (web, client), tempfile.TemporaryDirectory() as short:
        socket = Path(short) / "plane.sock"

        async def get(machine: Machine, url: str) -> str:
            def run() -> subprocess.CompletedProcess[str]:
                return machine.run(sys.executable, "-c", GET, url, check=False)

            done = await trio.to_thread.run_sync(run)
            return done.stdout or done.stderr[-300:]

        async def chains() -> set[str]:
            dump = await get(web, "http://127.0.0.1:15000/config_dump?resource=dynamic_listeners")
            try:
                listeners = json.loads(dump).get("configs", ())
            except ValueError:
                return set()
            active = [each.get("active_state", {}).get("listener", {}) for each in listeners]
            return {chain["name"] for each in active for chain in each.get("filter_chains", ()) if "name" in chain}

        async with (
            real_consul(tmp_path, free_ports(4)) as consul,
            running_plane(
                grpc_addr=f"unix://{socket}",
                registries=(ConsulRegistry((ConsulSettings(agent=Agent(consul.address)),)),),
            ),
        ):
            await consul.register("web", address=web.ipv4, port=PORT, meta={"protocol": "http"}, Check=TTL)
            inside = ("ip", "netns", "exec", web.name, sys.executable)
            agent = ("-m", "mesh_pilot.cli", "proxy", "sidecar", "--plaintext", f"--pilot=unix://{socket}")
            agent += (f"--ip={web.ipv4}", "--name=web-1", f"--state-dir={short}/state", f"--run-dir={short}/run")
            with (
                process(tmp_path / "app.log", "ip", "netns", "exec", web.name, "setpriv", "--reuid=1000",
                        "--regid=1000", "--clear-groups", sys.executable, "-c", APPLICATION),
                process(tmp_path / "agent.log", *inside, *agent),
            ):  # fmt: skip
                web.mesh_pilot("iptables", "apply", "--proxy-uid=0", "--proxy-gid=0")
                url = f"http://{web.ipv4}:{PORT}"

                async def declared(wanted: bool) -> None:
                    async def seen() -> bool:
                        found = await chains()
                        return bool(found) and (CHAIN in found) is wanted

                    await eventually(seen, seconds=30, what=f"the chain is there: {wanted}, of {await chains()}")

                await declared(True)
                assert await get(client, f"{url}/0") == "hello"
                answers: list[str] = []

                async def slow() -> None:
                    answers.append(await get(client, f"{url}/{SLOW_SECONDS}"))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(slow)

                    begun = f"begun /{SLOW_SECONDS}"
                    await eventually(lambda: begun in (tmp_path / "app.log").read_text(), what="a request under way")
                    await consul.check("web", "fail")
                    await declared(False)
                    assert answers == []
                    assert await get(client, f"{url}/0") == "hello"
                assert answers == ["hello"]
