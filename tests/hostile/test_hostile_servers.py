"""Servers that the objects of one namespace name, each as bad as it can be: the others notice nothing.

Every fetch that the plane makes on its own meets every misbehaviour of `tests.support.hostile_servers`, all of a kind
at once, from the first start on: it is ready in time, pushes arrive, another namespace's keys and modules come, memory
stays bounded, and ``SIGTERM`` ends it.
"""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.attack import ROOM_KB, _PeakMemory, good_client, quantile
from tests.support.certificates import serving, write_certificates
from tests.support.hostile_servers import HostileServers, hostile_servers
from tests.support.pilot import Pilot, until

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(240)]

READY_SECONDS, END_SECONDS, SOON_SECONDS = 20.0, 12.0, 1.0
GOOD_SECONDS = 10.0
"""The time in which what another namespace asks for is asked of its server."""
ATTACK_SECONDS = 20.0
MEMORY = 1.3
MODULES_KB = 2 * 32 * 1024 * 2
"""For modules: two of a namespace at once, each of 32 MiB at most, in a buffer that may be copied as it grows."""
SERVICES = 50
SLOW = ("silent", "drip-headers", "drip", "long-promise", "one-byte-chunks")
"""Misbehaviours of servers that hold a fetch until its time is over, or may."""


def policy(name: str, rule: str, namespace: str = "evil") -> str:
    return f"""---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{jwtRules: [{rule}]}}
"""


def plugin(name: str, url: str, namespace: str = "evil", more: str = "") -> str:
    return f"""---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{url: "{url}"{more}}}
"""


def whose(name: str) -> str:
    """The namespace of a misbehaviour: two, so that the slow ones leave the others their turns."""
    return "slow" if name in SLOW else "evil"


def keys(servers: HostileServers) -> str:
    found = [
        policy(name, f'{{issuer: {name}, jwksUri: "http://{servers.host}/{name}", timeout: 3600s}}', whose(name))
        for name in servers.bad
    ]
    return "".join(found)


def issuers(servers: HostileServers) -> str:
    return "".join(
        policy(f"{kind}{name}".replace("/", "-"), f'{{issuer: "http://{servers.host}/{kind}{name}"}}', whose(name))
        for kind in ("", "discovered/")
        for name in servers.bad
    )


def nobody(servers: HostileServers) -> str:
    """1,500 key sets and 300 modules at a port that is closed."""
    rules = ", ".join(f'{{issuer: i{n}, jwksUri: "http://127.0.0.1:1/{n}"}}' for n in range(1500))
    return policy("many", rules) + "".join(plugin(f"m{n}", f"http://127.0.0.1:1/{n}.wasm") for n in range(300))


def files(servers: HostileServers) -> str:
    odd = ["http://[v1.a]/m.wasm", "http://\uff41/m.wasm", "http://jo:pa55@127.0.0.1:1/?api_key=pa55"]
    found = [plugin(f"odd{n}", url) for n, url in enumerate(odd)]
    wrong = f", sha256: {'f' * 64}"
    found += [plugin(name, f"http://{servers.host}/{name}", whose(name), wrong) for name in servers.bad]
    return "".join(found)


def images(servers: HostileServers) -> str:
    return "".join(
        plugin(f"{kind.strip('/')}-{name}".strip("-"), f"oci://{servers.host}{kind}/{name}:v1", whose(name))
        for kind in ("", "/blob", "/token")
        for name in servers.bad
    )


FETCHES: dict[str, tuple[Callable[[HostileServers], str], int]] = {
    "keys": (keys, 0),
    "issuers": (issuers, 0),
    "nobody": (nobody, 0),
    "files": (files, MODULES_KB),
    "images": (images, MODULES_KB),
}
"""What one namespace asks for, and the memory that it may take beyond the share."""


def good(servers: HostileServers, end: str = "", namespace: str = "shop") -> str:
    rule = f'{{issuer: good, jwksUri: "http://{servers.host}/good-keys{end}"}}'
    return policy(f"good{end}", rule, namespace) + plugin(
        f"good{end}", f"http://{servers.host}/good-module{end}", namespace
    )


@pytest.fixture(scope="module")
def servers() -> Iterator[HostileServers]:
    with hostile_servers() as found:
        yield found


@pytest.fixture(scope="module")
def idle_kb(tmp_path_factory: pytest.TempPathFactory, servers: HostileServers) -> int:
    """The memory of a plane that has fetched what is good, some pushes later."""
    folder = tmp_path_factory.mktemp("idle") / "config"
    folder.mkdir()
    (folder / "good.yaml").write_text(good(servers))
    pilot = Pilot(folder, services=SERVICES)
    try:
        pilot.wait_ready()
        with good_client(pilot) as client:
            client.push_for(5)
            return pilot.resident_kb()
    finally:
        pilot.stop()


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def ended(pilot: Pilot) -> float:
    began = time.monotonic()
    pilot.process.send_signal(signal.SIGTERM)
    pilot.process.wait(60)
    return time.monotonic() - began


def attacked(pilot: Pilot, servers: HostileServers, idle_kb: int, more_kb: int) -> str:
    """Assert all that a plane owes others; it has not been waited for yet. Returns the figures."""
    began, starved = time.monotonic(), pilot.starved_seconds()
    servers.seen.clear()
    pilot.wait_ready()
    ready = time.monotonic() - began - (pilot.starved_seconds() - starved)
    with _PeakMemory(pilot) as memory, good_client(pilot) as client:
        pushes = client.push_for(ATTACK_SECONDS / 2)
        (pilot.folder / "late.yaml").write_text(good(servers, "-too", "bank"))
        late = time.monotonic()
        until(lambda: bool(servers.asked("good-keys-too")), GOOD_SECONDS, "another namespace's keys are asked for")
        until(lambda: bool(servers.asked("good-module-too")), GOOD_SECONDS, "another namespace's module is asked for")
        late = time.monotonic() - late
        pushes += client.push_for(ATTACK_SECONDS / 2)
    pages = "".join(page(f"http://127.0.0.1:{pilot.web_port}/{path}") for path in ("ready", "debug/statistics"))
    end = ended(pilot)
    said = (
        f"ready in {ready:.1f} s, pushes: p50 {quantile(pushes, 0.5):.2f} s, {max(pushes):.2f} s at most; "
        f"late ones asked for in {late:.1f} s; memory {idle_kb // 1024} MB idle, {memory.kb // 1024} MB at most; "
        f"ended in {end:.1f} s"
    )
    print(said)
    assert servers.asked("good-keys"), said
    assert servers.asked("good-module"), said
    assert ready < READY_SECONDS, said
    assert end < END_SECONDS, said
    assert max(pushes) < SOON_SECONDS, said
    assert memory.kb < MEMORY * idle_kb + more_kb + 1.5 * ROOM_KB, said  # what arrives, and what is loaded for it
    assert "Traceback" not in pilot.log(), pilot.log()[-3000:]
    assert "pa55" not in pilot.log() + pages
    return said


@pytest.mark.sweep(2)
@pytest.mark.parametrize("fetch", FETCHES)
def test_strangers_cost_only_who_names_them(fetch: str, tmp_path: Path, servers: HostileServers, idle_kb: int) -> None:
    objects, more_kb = FETCHES[fetch]
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "evil.yaml").write_text(objects(servers))
    (folder / "good.yaml").write_text(good(servers))
    pilot = Pilot(folder, services=SERVICES)
    try:
        said = attacked(pilot, servers, idle_kb, more_kb)
        if fetch != "nobody":
            never = [name for name in servers.bad if name not in SLOW and not servers.asked(name)]
            assert not never, f"no attack by {', '.join(never)}: {said}"
    finally:
        pilot.stop()


def test_bundles_of_strangers(tmp_path: Path, servers: HostileServers, idle_kb: int) -> None:
    certificates = write_certificates(tmp_path, "server")
    with hostile_servers(serving(certificates)) as secure:
        folder = tmp_path / "config"
        folder.mkdir()
        listed = "".join(
            f"- {{trustDomains: [d{number}], spiffeBundleUrl: 'https://{secure.host}/{name}'}}\n"
            for number, name in enumerate(secure.bad)
        )
        mesh = tmp_path / "mesh.yaml"
        mesh.write_text(f"caCertificates:\n{listed}")
        (folder / "good.yaml").write_text(good(servers))
        pilot = Pilot(folder, f"--mesh-config={mesh}", f"--trust-bundle-ca={certificates.ca}", services=SERVICES)
        try:
            attacked(pilot, servers, idle_kb, 0)
            assert secure.asked("silent")
        finally:
            pilot.stop()
