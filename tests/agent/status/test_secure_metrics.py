"""Metrics over mutual TLS: who may read them, certificates that change, hostile peers, and a real Prometheus."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import structlog
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.identity.material import read_material
from mesh_pilot.agent.settings import AgentFolders, CredentialSettings, PlaneSettings
from mesh_pilot.agent.status.exports import MetricsExports
from mesh_pilot.agent.status.scraping import MergedMetrics, ScrapeTarget
from mesh_pilot.agent.status.secure_metrics import SecureMetrics
from mesh_pilot.base.protowire import field
from tests.support.certificates import CertificateFiles, write_certificates
from tests.support.envoy import eventually
from tests.support.ports import free_ports
from tests.support.prometheus import prometheus
from tests.support.small_http import Said, small_http

PROMETHEUS = "spiffe://cluster.local/ns/monitoring/sa/prometheus"
WEB = "spiffe://cluster.local/ns/shop/sa/web"
PAGE = {"/metrics": Said(b"# TYPE orders_total counter\norders_total 7\n", "text/plain; version=0.0.4")}


@attrs.define
class Served:
    """The port, and what a test changes."""

    folder: Path
    port: int
    identity: WorkloadIdentity
    exports: Observable[MetricsExports]
    secure: SecureMetrics

    def certified(self, mesh: str, *more_roots: str) -> None:
        """Give the agent a certificate of a mesh's CA, and trust others, too."""
        files = self.files(mesh, "agent", WEB)
        roots = b"".join(self.files(name, "agent", WEB).ca.read_bytes() for name in (mesh, *more_roots))
        material = read_material(files.key.read_bytes(), files.certificate.read_bytes(), roots)
        self.identity.material.set(material)

    def files(self, mesh: str, name: str, *uris: str) -> CertificateFiles:
        (self.folder / mesh).mkdir(exist_ok=True)
        return write_certificates(self.folder / mesh, name, dns=(), uris=uris)

    async def get(
        self, files: CertificateFiles | None, path: str = "/stats/prometheus", method: str = "GET"
    ) -> httpx.Response:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=60) as client:
            return await client.request(method, f"https://127.0.0.1:{self.port}{path}")

    async def is_refused(self, files: CertificateFiles | None) -> bool:
        """True for a caller that does not come through the handshake."""
        try:
            await self.get(files)
        except httpx.HTTPError:
            return True
        return False


@asynccontextmanager
async def served(folder: Path, **exports: Any) -> AsyncIterator[Served]:
    """The port in the block, with a certificate of ``mesh``, in front of an application."""
    (port,) = free_ports(1)
    identity = WorkloadIdentity(
        CredentialSettings(token_file=folder / "token"),
        PlaneSettings((Pilot("127.0.0.1:1"),), plaintext=True),
        AgentFolders(folder / "state", folder / "run"),
    )
    async with small_http(PAGE) as application:
        metrics = MergedMetrics("", [ScrapeTarget("application", f"http://127.0.0.1:{application.port}/metrics")], {})
        observed = Observable(MetricsExports(port, **exports))
        secure = SecureMetrics(observed, metrics, identity)
        its = Served(folder, port, identity, observed, secure)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(secure.run)
            its.certified("mesh")
            await eventually(lambda: secure.statistics().is_serving)
            yield its
            nursery.cancel_scope.cancel()


async def test_a_workload_of_the_mesh_reads_the_page_and_nobody_else(tmp_path: Path) -> None:
    async with served(tmp_path) as its:
        mine = its.files("mesh", "prometheus", PROMETHEUS)
        for path in ("/stats/prometheus", "/metrics"):
            reply = await its.get(mine, path)
            assert reply.status_code == 200 and "orders_total 7\n" in reply.text
            assert reply.headers["connection"] == "close"  # so that whoever is revoked is asked again
        assert await its.is_refused(None)
        assert await its.is_refused(its.files("other", "prometheus", PROMETHEUS))
        assert (await its.get(mine, method="HEAD")).status_code == 200
        for path, status in (("/", 404), ("/debug/state", 404), ("/quitquitquit", 404), ("/healthz/ready", 404)):
            assert (await its.get(mine, path)).status_code == status
        assert (await its.get(mine, method="POST")).status_code == 405
        nameless = await its.get(its.files("mesh", "nameless"))
        assert (nameless.status_code, "without a SPIFFE id" in nameless.text) == (403, True)
        own = its.secure.statistics()
        assert (own.scrapes_total, own.refused_total, own.failed_handshakes_total) == (3, 1, 2)
        assert repr(its.secure) == f"<SecureMetrics on port {its.port} serving>"


async def test_where_principals_are_named_other_workloads_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path, principals=frozenset([PROMETHEUS])) as its:
        assert (await its.get(its.files("mesh", "prometheus", PROMETHEUS))).status_code == 200
        with structlog.testing.capture_logs() as logs:
            reply = await its.get(its.files("mesh", "web", WEB))
        assert (reply.status_code, reply.text) == (
            403,
            f"{WEB} is not among the principals that may read metrics here\n",
        )
        assert [line["event"] for line in logs] == ["metrics refused"]
        its.exports.set(attrs.evolve(its.exports.value, principals=frozenset([WEB])))
        assert (await its.get(its.files("mesh", "web", WEB))).status_code == 200
        its.exports.set(attrs.evolve(its.exports.value, principals=frozenset()))
        assert (await its.get(its.files("mesh", "prometheus", PROMETHEUS))).status_code == 403


async def test_a_name_that_looks_like_an_identity_and_is_none_admits_nobody(tmp_path: Path) -> None:
    async with served(tmp_path, principals=frozenset([PROMETHEUS])) as its:
        other = write_certificates(tmp_path / "mesh", PROMETHEUS.replace("/", "_"), dns=(PROMETHEUS,))
        assert (await its.get(other)).status_code == 403


async def test_certificate_and_roots_change_without_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as its:
        old, new = its.files("mesh", "prometheus", PROMETHEUS), its.files("next", "prometheus", PROMETHEUS)
        assert (await its.get(old)).status_code == 200
        assert await its.is_refused(new)
        its.certified("mesh", "next")
        assert [(await its.get(each)).status_code for each in (old, new)] == [200, 200]
        its.certified("next")
        assert (await its.get(new)).status_code == 200
        assert await its.is_refused(old)
        assert its.secure.statistics().is_serving


async def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as its:
        mine, other = its.files("mesh", "prometheus", PROMETHEUS), its.files("mesh", "other", PROMETHEUS)
        assert (await its.get(mine)).status_code == 200
        lists = revoked(mine)
        validation = field(1, field(2, mine.ca.read_bytes())) + field(7, field(2, lists))
        its.identity.set_root_secret(field(1, b"ROOTCA") + field(4, validation))
        assert await its.is_refused(mine)
        assert (await its.get(other)).status_code == 200


def revoked(files: CertificateFiles) -> bytes:
    """A list of its CA with this certificate."""
    ca = x509.load_pem_x509_certificate(files.ca.read_bytes())
    key = serialization.load_pem_private_key(files.ca.with_suffix(".key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    leaf = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    now = datetime.now(UTC)
    entry = x509.RevokedCertificateBuilder().serial_number(leaf.serial_number).revocation_date(now).build()
    builder = x509.CertificateRevocationListBuilder(ca.subject, now - timedelta(hours=1), now + timedelta(hours=1))
    return builder.add_revoked_certificate(entry).sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


async def test_the_port_follows_the_settings_and_waits_where_it_is_taken(tmp_path: Path) -> None:
    async with served(tmp_path) as its:
        mine = its.files("mesh", "prometheus", PROMETHEUS)
        before, (its.port,) = its.port, free_ports(1)
        (other,) = await trio.open_tcp_listeners(its.port, host="0.0.0.0")
        with structlog.testing.capture_logs() as logs:
            its.exports.set(MetricsExports(its.port))
            await eventually(lambda: bool(its.secure.statistics().reason))
            await eventually(lambda: any(line["event"] == "metrics are not served over TLS" for line in logs))
        with pytest.raises(OSError, match="all attempts"):
            await trio.open_tcp_stream("127.0.0.1", before)
        await other.aclose()
        await eventually(lambda: its.secure.statistics().is_serving)
        assert (await its.get(mine)).status_code == 200
        its.exports.set(MetricsExports())
        await eventually(lambda: its.secure.statistics().port == 0 and not its.secure.statistics().is_serving)
        assert await its.is_refused(mine)


HOSTILE: dict[str, bytes] = {
    "silence": b"",
    "half a handshake": bytes.fromhex("16030102000100"),
    "garbage": b"\x00\xff" * 4000,
    "plain HTTP": b"GET /stats/prometheus HTTP/1.1\r\nhost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("kind", list(HOSTILE))
async def test_strangers_who_fill_the_port_keep_prometheus_out_of_nothing(tmp_path: Path, kind: str) -> None:
    async with served(tmp_path) as its:
        streams = []
        for _ in range(70):
            stream = await trio.open_tcp_stream("127.0.0.1", its.port)
            if HOSTILE[kind]:
                await stream.send_all(HOSTILE[kind])
            streams.append(stream)
        reply = await its.get(its.files("mesh", "prometheus", PROMETHEUS))
        assert reply.status_code == 200
        own = its.secure.statistics()
        assert own.connections_open <= 50
        assert own.is_serving
        if kind in ("silence", "half a handshake"):
            assert own.connections_displaced_total >= 20
        else:
            await eventually(lambda: its.secure.statistics().failed_handshakes_total >= 20)
        for stream in streams:
            await trio.aclose_forcefully(stream)


def replace(files: Mapping[str, str], new: CertificateFiles) -> None:
    """Write Prometheus' files."""
    Path(files["key_file"]).write_bytes(new.key.read_bytes())
    Path(files["cert_file"]).write_bytes(new.certificate.read_bytes())


@pytest.mark.process
async def test_a_real_prometheus_scrapes_with_a_certificate_of_the_mesh_and_not_without(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (tmp_path / "own").mkdir()
    async with served(tmp_path, principals=frozenset([PROMETHEUS])) as its:
        mine = its.files("mesh", "prometheus", PROMETHEUS)
        files = {name: str(tmp_path / "own" / f"{name}.pem") for name in ("cert_file", "key_file")}
        replace(files, mine)
        tls = {"insecure_skip_verify": True}  # a certificate of the mesh has a SPIFFE id and no name of a host
        job = {"metrics_path": "/stats/prometheus", "scheme": "https"}
        address = f"127.0.0.1:{its.port}"
        folders = [tmp_path / name for name in ("with", "without")]
        for each in folders:
            each.mkdir()
        first, second = free_ports(2)
        async with (
            prometheus(folders[0], first, {"agents": [address]}, **job, tls_config={**files, **tls}) as allowed,
            prometheus(folders[1], second, {"agents": [address]}, **job, tls_config=tls) as refused,
        ):
            await allowed.has('up{job="agents"} == 1')
            await allowed.has("orders_total == 7")
            await refused.has('up{job="agents"} == 0')
            # The mesh gets another root; Prometheus reads its files again.
            new = its.files("next", "prometheus", PROMETHEUS)
            its.certified("next")
            await allowed.has('up{job="agents"} == 0')
            replace(files, new)
            await allowed.has('up{job="agents"} == 1')
            assert await refused.query('up{job="agents"} == 1') == []
