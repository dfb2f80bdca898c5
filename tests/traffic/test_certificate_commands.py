"""The commands of docs/envoy-bootstrap.md for mutual TLS, typed: root, token, certificate, bootstrap, a real Envoy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.envoy import eventually, http_client
from tests.support.tutorial import environment, put_tools, terminal

pytestmark = pytest.mark.envoy

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str, begin: str, end: str) -> list[str]:
    """The lines to type of a part of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    text = text[text.index(begin) : text.index(end, text.index(begin))].replace("\\\n", " ")
    return [re.sub(r"\s+", " ", line) for line in re.findall(r"^    (.*)$", text, re.MULTILINE)]


async def test_the_commands_for_mutual_tls_give_an_envoy_its_configuration(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    typed = commands("envoy-bootstrap.md", "## Mutual TLS to the control plane", "With certificates of your own CA")
    assert [line.split(" --")[0] for line in typed] == [
        "mesh-pilot discovery",
        "mesh-pilot ca root",
        "mesh-pilot token create web",
        "mesh-pilot certificate",
        "mesh-pilot envoy-bootstrap",
        "envoy -c envoy.yaml",
        "mesh-pilot certificate",
    ]
    assert set(commands("certificate-requests.md", "## From the command line", "`root.pem` is")) <= set(typed)
    secure, web, admin, grpc, monitoring = free_ports(5)

    def here(line: str) -> str:
        """The command on this machine: other ports and paths; the name in the certificate stays."""
        line = line.replace("/var/lib/mesh-pilot", str(tmp_path)).replace("0.0.0.0:15012", f"127.0.0.1:{secure}")
        if line.startswith("mesh-pilot certificate"):
            line += " --tls-server-name pilot.internal"
        if line.startswith("mesh-pilot envoy-bootstrap"):
            line = line.replace(" >", f" --admin 127.0.0.1:{admin} >")
        line = line.replace("pilot.internal:15012", f"127.0.0.1:{secure}")
        ports = f"--http-addr 127.0.0.1:{web} --grpc-addr 127.0.0.1:{grpc} --monitoring-addr 127.0.0.1:{monitoring}"
        return line.replace("discovery ", f"discovery {ports} ")

    put_tools(tmp_path / "bin")
    folder = tmp_path / "here"
    (folder / "config").mkdir(parents=True)
    plane, root, token, certificate, bootstrap, envoy, renewal = map(here, typed)
    async with (
        http_client() as client,
        terminal(folder, environment(tmp_path / "bin", XDG_STATE_HOME=str(tmp_path))) as shell,
    ):

        async def is_answered(url: str) -> bool:
            try:
                return (await client.get(url)).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False

        async def serials() -> set[str]:
            """The certificates that Envoy shows the control plane."""
            found = (await client.get(f"http://127.0.0.1:{admin}/certs")).json()["certificates"]
            return {chain["serial_number"] for each in found for chain in each["cert_chain"]}

        await shell.type(f"{plane} > plane.log 2>&1 &")
        await eventually(lambda: is_answered(f"http://127.0.0.1:{web}/ready"), what="the control plane is ready")
        for line in (root, token, certificate, bootstrap):
            await shell.type(f"{line} 2>> typed.log")
        await shell.type(f"{envoy} > envoy.log 2>&1 &")
        said = (folder / "typed.log").read_text()
        await eventually(lambda: is_answered(f"http://127.0.0.1:{admin}/ready"), what=f"Envoy is live; {said}")
        assert "web-1" in await shell.type(f"mesh-pilot proxy-status --pilot 127.0.0.1:{web}")

        before = await serials()
        chain = folder / "certs" / "cert-chain.pem"
        first = chain.read_bytes()
        assert "is due at" in await shell.type(renewal)
        assert chain.read_bytes() == first
        assert "renew it from" in await shell.type(renewal.replace("--if-due", ""))

        async def has_followed() -> bool:
            return await serials() != before

        await eventually(has_followed, what="Envoy reads the renewed certificate")
