"""Floods of requests for certificates, and of callers who prove nothing, next to a good client: pushes go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.attack import Report, Victim, victim
from tests.support.forgery import Forger, csr_of

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("identity_attacks.py")
SECONDS = 5


@attrs.frozen
class Attacked:
    """A plane that serves TLS, and the folder of what attackers show."""

    victim: Victim
    folder: Path

    def by(self, attack: str) -> Report:
        port = self.victim.pilot.tls_port
        report = self.victim.under_attack([SCRIPT, str(port), str(SECONDS), attack, self.folder])
        report.assert_held()
        return report


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("identity")
    forger = Forger(folder / "shown")
    forger.leaf("spiffe://cluster.local/ns/default/sa/evil")
    forger.leaf("spiffe://cluster.local/ns/default/sa/evil", signer=forger.foreign)
    (forger.folder / "small.csr").write_bytes(csr_of())
    (forger.folder / "large.csr").write_bytes(csr_of(rsa.generate_private_key(65537, 4096)))
    (forger.folder / "garbage.csr").write_bytes(b"-----BEGIN CERTIFICATE REQUEST-----\n" * 100_000)
    server = forger.leaf(dns=("localhost",))
    tls = (f"--tls-cert={server.certificate}", f"--tls-key={server.key}", f"--tls-ca={server.trusted}")
    with victim(folder / "config", *tls, "--secure-grpc-addr=127.0.0.1:0") as found:
        yield Attacked(found, forger.folder)


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        ("requests", {"OK", "RESOURCE_EXHAUSTED"}),
        ("large_keys", {"OK", "RESOURCE_EXHAUSTED"}),
        ("garbage", {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}),
        ("strangers", {"UNAUTHENTICATED"}),
        ("wrong_tokens", {"UNAUTHENTICATED"}),
        ("handshakes", {"TLSV1_ALERT_UNKNOWN_CA"}),
    ],
)
def test_a_flood_costs_others_little(plane: Attacked, attack: str, told: set[str]) -> None:
    report = plane.by(attack)
    answers = set(report.attacker["told"])
    assert answers and answers <= told, report


def test_memory_comes_back(plane: Attacked) -> None:
    plane.victim.assert_memory_is_back()
