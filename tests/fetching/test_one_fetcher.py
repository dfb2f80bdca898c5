"""Servers of others are asked by the fetcher alone: whoever makes another HTTP client says whose server it asks."""

from __future__ import annotations

import re
from pathlib import Path

import mesh_pilot

ROOT = Path(mesh_pilot.__file__).parent

OWN_CLIENTS = {
    "agent/health/checks.py": "the application next to the agent",
    "agent/registration/local_agent.py": "the Consul agent of the machine",
    "agent/status/scraping.py": "the application and the Envoy next to the agent",
    "kubernetes/apiserver/connections.py": "the API server of the kubeconfig",
    "cli": "servers that the command line names",
    "net/otlp": "the operator's collector",
    "identity/signers/wire.py": "the operator's CA",
    "consul/client": "the operator's Consul",
}
"""Files and folders with HTTP clients of their own, and whose server they ask. No author of objects can name these."""

CLIENT = re.compile(r"httpx\.(AsyncClient|Client|AsyncHTTPTransport|get|post|request|stream)\(")
DECODES_FIRST = re.compile(r"\.(aiter_bytes|aiter_text|aiter_lines|aread)\(")
"""Ways of httpx to read a body that decode before anybody can look at the size."""


def found(pattern: re.Pattern[str]) -> set[str]:
    paths = [path for path in ROOT.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]
    return {path.relative_to(ROOT).as_posix() for path in paths}


def test_nothing_else_asks_servers_that_authors_of_objects_name() -> None:
    clients = {path for path in found(CLIENT) if not path.startswith("net/fetching/")}
    excused = {path for path in clients if any(path == own or path.startswith(f"{own}/") for own in OWN_CLIENTS)}
    assert clients == excused
    unused = [own for own in OWN_CLIENTS if not any(path == own or path.startswith(f"{own}/") for path in clients)]
    assert not unused, "no longer there"


def test_bodies_are_not_decoded_before_their_size_is_known() -> None:
    assert found(DECODES_FIRST) <= {"agent/status/scraping.py"}, (
        "of the application next to the agent, asked for identity"
    )
