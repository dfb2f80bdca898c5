"""Whoever fills what there is only so much of, connections, handshakes, streams, scopes or entries, keeps nobody out.

Next to each attack there is a good client, which returns and again from the same address, with an identity of its
own where the port knows identities; ``/ready`` is asked on a new connection each time.
"""

from __future__ import annotations

import resource
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import grpc
import pytest
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.json_format import ParseDict

from mesh_pilot.model.resource import CLUSTER
from tests.support.attack import Report, Victim, victim
from tests.support.forgery import Forger
from tests.support.pilot import ADS, port_of, until

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("limit_attacks.py")
SECONDS = 8
USUAL_SECONDS, LONGEST_SECONDS = 1.0, 5.0
"""What half of the asks may take, and each, on a machine that does other things as well."""
SETTLED_SECONDS = 1.5
"""The attack has begun."""
GROUP = """
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: any, namespace: NAMESPACE}
spec: {template: {}}
"""


@attrs.frozen
class Attacked:
    """A plane, and the folder of what attackers and the good client show."""

    victim: Victim
    folder: Path
    limits: str

    def https(self, what: str, path: str) -> str:
        return f"https://127.0.0.1:{self.port(what)}/{path}"

    def port(self, what: str) -> int:
        pilot = self.victim.pilot
        return {
            "web": pilot.web_port,
            "webhooks": pilot.webhook_port,
            "metrics": pilot.monitoring_port,
            "tls": pilot.tls_port,
            "grpc": pilot.grpc_port,
        }[what]

    def under(self, attack: str, what: str, count: int, asks: dict[str, Callable[[], object]]) -> Report:
        """The report of an attack, in which all asks were answered in time."""
        folder = self.folder / "evil"
        asked = {name: Asked(ask, self.victim.pilot.starved_seconds) for name, ask in asks.items()}
        with Asked.all(asked.values()):
            report = self.victim.under_attack([SCRIPT, str(self.port(what)), str(SECONDS), attack, str(count), folder])
        print({name: str(each) for name, each in asked.items()})
        report.assert_held()
        for name, each in asked.items():
            each.assert_answered(name)
        return report


class Asked:
    """A question that is put again and again by a thread, and how long the answers took.

    Not counted is the time in which the plane would have run but for other processes, such as the attacker.
    """

    def __init__(self, ask: Callable[[], object], starved_seconds: Callable[[], float]) -> None:
        self._ask = ask
        self._starved_seconds = starved_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.errors: list[str] = []

    @staticmethod
    @contextmanager
    def all(asked: Any) -> Iterator[None]:
        for each in asked:
            each._thread.start()
        yield
        for each in asked:
            each._stop.set()
            each._thread.join()

    def _run(self) -> None:
        self._stop.wait(SETTLED_SECONDS)
        while not self._stop.wait(0.3):
            began, starved = time.monotonic(), self._starved_seconds()
            try:
                self._ask()
                self.seconds.append(max(0.0, time.monotonic() - began - (self._starved_seconds() - starved)))
            except (OSError, grpc.RpcError, AssertionError) as error:
                self.errors.append(f"after {time.monotonic() - began:.1f} s: {error}"[:300])

    def __str__(self) -> str:
        ordered = sorted(self.seconds) or [float("nan")]
        return (
            f"{len(self.seconds)} answers: p50 {ordered[len(ordered) // 2]:.2f} s, at most {ordered[-1]:.2f} s; "
            f"{len(self.errors)} errors {self.errors[:2]}"
        )

    def assert_answered(self, name: str) -> None:
        assert len(self.seconds) >= 4 and not self.errors, f"{name}: {self}"
        assert sorted(self.seconds)[len(self.seconds) // 2] < USUAL_SECONDS, f"{name}: {self}"
        assert max(self.seconds) < LONGEST_SECONDS, f"{name}: {self}"


def planes() -> dict[str, tuple[int, int]]:
    """The limits on open files, soft and hard, with which planes are started."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return {"a shell's": (1024, hard), "few": (1024, 1024)}


@pytest.fixture(scope="module", params=planes())
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("limits")
    evil = Forger(folder / "evil")
    good = Forger(folder / "good", evil.own)
    evil.leaf("spiffe://cluster.local/ns/evil/sa/mallory")
    good.leaf("spiffe://cluster.local/ns/good/sa/web")
    server = Forger(folder / "server", evil.own).leaf(dns=("localhost",))
    limits = planes()[request.param]
    with victim(
        folder / "config",
        f"--tls-cert={server.certificate}",
        f"--tls-key={server.key}",
        f"--tls-ca={server.trusted}",
        f"--api-tls-cert={server.certificate}",
        f"--api-tls-key={server.key}",
        "--secure-grpc-addr=127.0.0.1:0",
        "--https-addr=127.0.0.1:0",
        "--max-streams=700",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    ) as found:
        groups = "---".join(GROUP.replace("NAMESPACE", each) for each in ("evil", "good"))
        (found.pilot.folder / "groups.yaml").write_text(groups)
        yield Attacked(found, folder, request.param)


def get(url: str) -> Callable[[], object]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def ask() -> object:
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            assert answer.status == 200
            return answer.read()

    return ask


def new_client(here: Attacked, what: str, **claimed: Any) -> Callable[[], object]:
    """A good client on a new connection, with its identity over TLS, until it has its clusters."""
    namespace = "good" if what == "tls" else "default"
    node = {"id": f"sidecar~127.0.0.1~web.{namespace}~{namespace}.svc.cluster.local"} | claimed
    request = discovery_pb2.DiscoveryRequest(type_url=CLUSTER, node=ParseDict(node, Node())).SerializeToString()
    key, chain, root = ((here.folder / "good" / name).read_bytes() for name in ("1.key", "1.pem", "own.pem"))
    credentials = grpc.ssl_channel_credentials(root, key, chain)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", "localhost")]

    def ask() -> object:
        target, done = f"127.0.0.1:{here.port(what)}", threading.Event()

        def requests() -> Iterator[bytes]:
            yield request
            done.wait(60)

        channel = (
            grpc.secure_channel(target, credentials, options)
            if what == "tls"
            else grpc.insecure_channel(target, options)
        )
        with channel:
            try:
                answer = next(channel.stream_stream(ADS)(requests(), timeout=20))
            finally:
                done.set()
        return port_of(discovery_pb2.DiscoveryResponse.FromString(answer))

    return ask


@pytest.mark.sweep(2)
@pytest.mark.parametrize("attack", ["silent", "half_a_hello"])
@pytest.mark.parametrize(("what", "path"), [("web", "ready"), ("webhooks", "httpsReady")])
def test_handshakes_that_do_not_go_on_close_no_port(here: Attacked, what: str, path: str, attack: str) -> None:
    report = here.under(attack, what, 520, {path: get(here.https(what, path))})
    assert report.attacker["ended"] > 0
    assert "a connection was closed to make room for another" in here.victim.pilot.log()


def test_answers_that_are_not_read_close_no_port(here: Attacked) -> None:
    url = f"http://127.0.0.1:{here.port('metrics')}/ready"
    report = here.under("unread", "metrics", 520, {"ready": get(url)})
    assert report.attacker["ended"] > 0


def test_idle_clients_stop_neither_files_nor_new_clients(here: Attacked) -> None:
    """More than a shell's 1,024 descriptors."""
    asks = {"ready": get(here.https("web", "ready")), "a new client": new_client(here, "grpc")}
    report = here.under("idle_grpc", "grpc", 1100, asks)
    assert "EMFILE" not in report.log
    assert ("ended" in report.attacker) == (here.limits == "few")


def test_a_fleet_behind_one_address_is_no_attack(here: Attacked) -> None:
    """More proxies than `--max-scopes-per-peer`, all of one scope and without identity."""
    asks = {"ready": get(here.https("web", "ready")), "a new client": new_client(here, "grpc")}
    report = here.under("fleet", "grpc", 520, asks)
    assert report.attacker["begun"] == 520 <= report.attacker["responses"]
    assert set(report.attacker) == {"begun", "responses"}


def test_silent_handshakes_at_the_grpc_port_keep_nobody_out(here: Attacked) -> None:
    ask = new_client(here, "tls")

    def ask_as_an_envoy() -> object:
        """It connects again: where files are few, 500 connections a second from its address leave it 1.3 s a step."""
        try:
            return ask()
        except grpc.RpcError:
            return ask()

    here.under("silent", "tls", 1100, {"ready": get(here.https("web", "ready")), "a new client": ask_as_an_envoy})


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("attack", "count", "claimed"),
    [
        ("streams", 900, {}),
        ("localities", 520, {"locality": {"region": "mine"}}),
        ("entries", 30, {"metadata": {"AUTO_REGISTER_GROUP": "any", "NETWORK": "mine"}}),
    ],
)
def test_what_one_identity_fills_is_its_own(here: Attacked, attack: str, count: int, claimed: dict[str, Any]) -> None:
    asks = {"ready": get(here.https("web", "ready")), "a new client": new_client(here, "tls", **claimed)}
    report = here.under(attack, "tls", count, asks)
    told = "\n".join(report.attacker)
    reasons = {"streams": "--max-streams", "localities": "--max-scopes-per-peer", "entries": "20 times for spiffe"}
    assert reasons[attack] in told


def test_nothing_is_left_of_all_that(here: Attacked) -> None:
    here.victim.assert_memory_is_back()
    pilot = here.victim.pilot
    until(lambda: pilot.open_files() < 100, 60, "the descriptors are back")
