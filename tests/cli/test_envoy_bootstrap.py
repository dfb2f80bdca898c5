"""The bootstrap writer: what it says of a node, and that Envoy itself accepts it."""

from __future__ import annotations

import math
import subprocess
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import yaml
from cryptography import x509
from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap
from google.protobuf import json_format

from mesh_pilot.agent.bootstrap.envoy_bootstrap import ClientTls, EnvoyNode, envoy_bootstrap, to_yaml
from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.model.proxy import Interception, NodeType, parse_proxy
from mesh_pilot.model.service import Locality
from mesh_pilot.net.rpc.errors import AddressError
from tests.support.certificates import CertificateFiles, serving, write_certificates

NODE = EnvoyNode(
    "web-1",
    namespace="shop",
    ip="10.1.1.1",
    labels={"app": "web", "version": "v1"},
    interception=Interception.NONE,
    locality=Locality("eu", "eu-1"),
    metadata={"CLUSTER_ID": "vms"},
)


def write_sds(tls: ClientTls | None) -> None:
    for path, text in tls.sds_files().items() if tls else ():
        path.write_text(text)


def read_back(bootstrap: object) -> Bootstrap:
    """Through the YAML text and Envoy's own message, which refuses unknown fields (extensions are not looked into)."""
    document = yaml.safe_load(to_yaml(bootstrap))  # type: ignore[arg-type]
    for cluster in document["static_resources"]["clusters"]:
        cluster.pop("typed_extension_protocol_options")
        cluster.pop("transport_socket", None)
    return json_format.ParseDict(document, Bootstrap())


def test_the_node_is_read_back_by_the_control_plane_as_it_was_meant() -> None:
    node = read_back(envoy_bootstrap(NODE, "127.0.0.1:15010")).node
    proxy = parse_proxy(node.id, json_format.MessageToDict(node.metadata))
    assert (proxy.name, proxy.namespace, proxy.ip_addresses) == ("web-1.shop", "shop", ("10.1.1.1",))
    assert proxy.dns_domain == "shop.svc.cluster.local"
    assert proxy.labels == {"app": "web", "version": "v1"}
    assert proxy.interception is Interception.NONE
    assert proxy.metadata["CLUSTER_ID"] == "vms"
    assert (node.cluster, node.locality.region, node.locality.zone) == ("web.shop", "eu", "eu-1")


def test_a_router_has_no_interception_mode() -> None:
    node = EnvoyNode("edge-0", type=NodeType.ROUTER, ip="10.1.1.9")
    assert node.id == "router~10.1.1.9~edge-0.default~default.svc.cluster.local"
    assert "INTERCEPTION_MODE" not in envoy_bootstrap(node, "127.0.0.1:15010")["node"]["metadata"]  # type: ignore


@pytest.mark.parametrize(("delta", "api_type"), [(False, "GRPC"), (True, "DELTA_GRPC")])
def test_one_ads_stream_carries_everything(delta: bool, api_type: str) -> None:
    resources = read_back(envoy_bootstrap(NODE, "127.0.0.1:15010", delta=delta)).dynamic_resources
    assert resources.ads_config.ApiType.Name(resources.ads_config.api_type) == api_type
    assert resources.cds_config.HasField("ads")
    assert resources.lds_config.HasField("ads")


@pytest.mark.parametrize(
    ("pilot", "kind", "address"),
    [
        ("127.0.0.1:15010", "STATIC", "127.0.0.1"),
        ("[::1]:15010", "STATIC", "::1"),
        ("pilot.internal:15010", "STRICT_DNS", "pilot.internal"),
        ("unix:///run/pilot.sock", "STATIC", "/run/pilot.sock"),
    ],
)
def test_the_control_plane_is_reached_at_any_form_of_address(pilot: str, kind: str, address: str) -> None:
    (cluster,) = read_back(envoy_bootstrap(NODE, pilot)).static_resources.clusters
    found = cluster.load_assignment.endpoints[0].lb_endpoints[0].endpoint.address
    assert cluster.DiscoveryType.Name(cluster.type) == kind
    assert (found.pipe.path or found.socket_address.address) == address


@pytest.mark.parametrize("pilot", ["15010", "host", "host:", ":15010", "host:http", "host:70000"])
def test_another_form_of_address_is_refused(pilot: str) -> None:
    with pytest.raises(AddressError, match="write host:port"):
        envoy_bootstrap(NODE, pilot)


def priorities(node: EnvoyNode, *pilots: str) -> list[tuple[int, list[str]]]:
    """The addresses of control planes in a bootstrap, by priority."""
    (cluster,) = read_back(envoy_bootstrap(node, *pilots)).static_resources.clusters
    found: dict[int, list[str]] = {}
    for group in cluster.load_assignment.endpoints:
        hosts = [each.endpoint.address.socket_address.address for each in group.lb_endpoints]
        found.setdefault(group.priority, []).extend(hosts)
    return sorted(found.items())


EVERYWHERE = ("a:1@us/us-1", "b:1@eu/eu-2", "c:1@eu/eu-1", "d:1@us/us-2", "e:1@eu/eu-1", "f:1")


def test_the_nearest_control_planes_come_first() -> None:
    assert priorities(NODE, *EVERYWHERE) == [(0, ["c", "e"]), (1, ["b"]), (2, ["a", "d", "f"])]
    assert priorities(NODE, "a:1@us/us-1", "b:1@eu/eu-2") == [(0, ["b"]), (1, ["a"])]


@pytest.mark.parametrize(
    ("node", "pilots"),
    [(EnvoyNode("web-1"), EVERYWHERE), (NODE, ("a:1", "b:1")), (NODE, ("a:1@us", "b:1@us/us-2"))],
    ids=["no locality of its own", "no locality of theirs", "all elsewhere"],
)
def test_control_planes_of_which_none_is_nearer_are_equal(node: EnvoyNode, pilots: tuple[str, ...]) -> None:
    ((priority, hosts),) = priorities(node, *pilots)
    assert (priority, len(hosts)) == (0, len(pilots))


def test_one_control_plane_is_never_left_out() -> None:
    """With several, one that does not answer is."""
    (alone,) = read_back(envoy_bootstrap(NODE, "a:1@us/us-1")).static_resources.clusters
    (one_of_two,) = read_back(envoy_bootstrap(NODE, "a:1", "b:1")).static_resources.clusters
    assert not alone.HasField("outlier_detection")
    assert one_of_two.outlier_detection.max_ejection_percent.value == 100


@pytest.mark.parametrize(
    ("pilots", "reason"),
    [
        (("a:1@",), "names no locality"),
        (("a@eu:1",), "has no port"),
        (("unix:///run/a.sock", "b:1"), "give IP addresses"),
        ((), "no control plane"),
    ],
)
def test_control_planes_that_envoy_could_not_take_are_refused(pilots: tuple[str, ...], reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        envoy_bootstrap(NODE, *pilots)


@pytest.mark.envoy
@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
@pytest.mark.parametrize("secure", ["plaintext", "mtls", "rotating"])
def test_envoy_itself_finds_nothing_wrong_with_it(
    envoy_binary: Path, tmp_path: Path, delta: bool, secure: str, client_tls: ClientTls
) -> None:
    tls = {"plaintext": None, "mtls": client_tls, "rotating": attrs.evolve(client_tls, sds=tmp_path)}[secure]
    write_sds(tls)
    bootstrap = envoy_bootstrap(NODE, "pilot.internal:15012", "10.0.0.9:15012@eu/eu-1", delta=delta, tls=tls)
    config = tmp_path / "envoy.yaml"
    config.write_text(to_yaml(bootstrap))
    done = subprocess.run(
        [str(envoy_binary), "--mode", "validate", "-c", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()


def test_a_folder_is_watched_only_where_certificate_and_key_are_in_it_together(tmp_path: Path) -> None:
    """Else Envoy watches each of the files on its own, which finds no exchange of a linked folder."""

    def certificate(key: Path) -> object:
        tls = ClientTls(tmp_path / "ca.pem", tmp_path / "cert.pem", key, sds=tmp_path)
        (first, _) = tls.sds_files().values()
        return yaml.safe_load(first)["resources"][0]["tls_certificate"].get("watched_directory")

    assert certificate(tmp_path / "key.pem") == {"path": str(tmp_path)}
    assert certificate(tmp_path / "private" / "key.pem") is None


def put_in_place(fresh: CertificateFiles, tls: ClientTls) -> None:
    """Replace the key, then the certificate, each by a rename."""
    fresh.key.rename(tls.key)
    fresh.certificate.rename(tls.certificate)


@pytest.mark.envoy
async def test_a_replaced_certificate_is_used_for_the_next_connection(
    envoy_binary: Path, tmp_path: Path, client_tls: ClientTls
) -> None:
    tls = attrs.evolve(client_tls, sds=tmp_path, server_name="pilot.internal")
    write_sds(tls)
    server = serving(write_certificates(tmp_path, "pilot", dns=("pilot.internal",)), mutual=True)
    server.set_alpn_protocols(["h2"])
    first = x509.load_pem_x509_certificate(tls.certificate.read_bytes()).serial_number
    send, receive = trio.open_memory_channel[int](math.inf)

    async def hang_up(stream: trio.SocketStream) -> None:
        """A control plane that looks at the client's certificate and closes: Envoy returns."""
        secure = trio.SSLStream(stream, server, server_side=True)
        await secure.do_handshake()
        certificate = secure.getpeercert()
        assert certificate is not None
        send.send_nowait(int(str(certificate["serialNumber"]), 16))
        await trio.aclose_forcefully(secure)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        pilot = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with running_envoy(envoy_bootstrap(NODE, pilot, tls=tls), tmp_path):
            with trio.fail_after(60):
                assert await receive.receive() == first
                fresh = write_certificates(tmp_path, "renewed")
                renewed = x509.load_pem_x509_certificate(fresh.certificate.read_bytes()).serial_number
                put_in_place(fresh, tls)
                while (serial := await receive.receive()) == first:
                    pass
                assert serial == renewed
        nursery.cancel_scope.cancel()
