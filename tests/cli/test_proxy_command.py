"""``mesh-pilot proxy``: where settings come from, which of them wins, and what is said of those that are wrong."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from click.testing import CliRunner, Result

from mesh_pilot.agent.bootstrap.proxy_config import Place
from mesh_pilot.agent.bootstrap.proxy_config import effects as effects_of_fields
from mesh_pilot.agent.bootstrap.statistics_config import ANNOTATION, READ, READ_ELSEWHERE, annotation_problems
from mesh_pilot.agent.bootstrap.system_roots import system_roots
from mesh_pilot.agent.run.bootstrap import agent_bootstrap, envoy_settings
from mesh_pilot.agent.settings import AgentError, AgentSettings, ConsulAgentSettings
from mesh_pilot.cli.lib.options import variable_of
from mesh_pilot.cli.proxy import command
from mesh_pilot.cli.proxy import machine as machine_module
from mesh_pilot.cli.proxy import run as run_module
from mesh_pilot.cli.proxy.consul_service import described, from_consul
from mesh_pilot.cli.proxy.flags import FLAGS, PREFIX, name_of
from mesh_pilot.cli.proxy.istio_names import ANSWERED, HONOURED, SPECIAL, Remark
from mesh_pilot.cli.proxy.machine import why_unusable
from mesh_pilot.cli.proxy.settings import ANNOTATIONS, CONFIG_ANNOTATION, SCRAPED
from mesh_pilot.mesh.proxy.span_source import SERVICE_ANNOTATION
from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.service import Locality
from tests.agent.test_proxy_config import encoded
from tests.mesh.test_agent_config import proxy_config
from tests.mesh.test_agent_config import settings as settings_of_mesh
from tests.support.certificates import write_certificates
from tests.support.consul import real_consul

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "proxy.md"


class Machine:
    """A machine with a settings file; ``settings`` runs the command up to where the agent would start."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.file = folder / "proxy.yaml"
        self.taken: list[AgentSettings] = []
        (folder / "root.pem").write_text("PEM")
        monkeypatch.setattr(run_module, "run_agent_of", self.taken.append)
        monkeypatch.setattr(run_module, "prepare_process", lambda: None)

    def run(self, *flags: str, file: str = "", env: Mapping[str, str] | None = None, kind: str = "sidecar") -> Result:
        own = ["--state-dir", str(self.folder / "state"), "--run-dir", str(self.folder / "run")]
        self.file.write_text(file)
        return CliRunner().invoke(
            command, [kind, "--config", str(self.file), *own, *flags], env=dict(env or {}), standalone_mode=False
        )

    def settings(self, *flags: str, **more: Any) -> AgentSettings:
        basic = ["--ip", "10.1.1.1", "--pilot", "10.0.0.5:15012", "--tls-ca", str(self.folder / "root.pem")]
        given = [] if "pilot" in more.get("file", "") else basic
        result = self.run(*given, *flags, **more)
        assert result.exception is None, result.exception
        return self.taken.pop()

    def mistake(self, *flags: str, **more: Any) -> str:
        result = self.run(*flags, **more)
        assert isinstance(result.exception, click.ClickException), result.exception
        assert "\n" not in result.exception.message
        return result.exception.message


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name in [*os.environ]:
        if name.startswith(("MESH_PILOT_", "ISTIO_", "POD_")) or name in (*HONOURED, *ANSWERED, *SPECIAL):
            monkeypatch.delenv(name)
    return Machine(tmp_path, monkeypatch)


def test_a_flag_wins_over_our_variable_over_istios_over_the_file(machine: Machine) -> None:
    file = "namespace: of-file\n"
    istio = {"POD_NAMESPACE": "of-istio"}
    ours = {**istio, "MESH_PILOT_PROXY_NAMESPACE": "of-ours"}
    assert machine.settings().node.namespace == "default"
    assert machine.settings(file=file).node.namespace == "of-file"
    assert machine.settings(file=file, env=istio).node.namespace == "of-istio"
    assert machine.settings(file=file, env=ours).node.namespace == "of-ours"
    assert machine.settings("--namespace", "of-flag", file=file, env=ours).node.namespace == "of-flag"


def test_a_router_has_an_address_of_each_ip_version_that_the_machine_has_and_a_sidecar_where_it_is_told_to(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ips(given: str, *addresses: str, flags: Sequence[str] = (), **more: Any) -> str:
        monkeypatch.setattr(machine_module, "machine_addresses", lambda: addresses)
        monkeypatch.setattr(machine_module, "has_ipv6", lambda: any(":" in each for each in addresses))
        monkeypatch.setattr(machine_module, "_by_default_route", lambda version: "")
        return ",".join(machine.settings("--ip", given, *flags, **{"kind": "router", **more}).node.ips)

    both = ("10.1.1.1", "2001:db8::1")
    assert ips("10.1.1.1", *both, kind="sidecar") == ips("10.1.1.1", *both, flags=["--single-stack"]) == "10.1.1.1"
    assert ips("10.1.1.1", *both, kind="sidecar", flags=["--dual-stack"]) == "10.1.1.1,2001:db8::1"
    assert ips("10.1.1.1", *both, kind="sidecar", env={"ISTIO_DUAL_STACK": "true"}) == "10.1.1.1,2001:db8::1"
    assert ips("10.1.1.1", *both, env={"ISTIO_DUAL_STACK": "false"}) == "10.1.1.1"
    assert ips("10.1.1.1", "10.1.1.1", "172.17.0.1", "2001:db8::1") == "10.1.1.1,2001:db8::1"
    assert ips("2001:db8::1", "10.1.1.1", "2001:db8::1") == "2001:db8::1,10.1.1.1"
    assert ips("10.1.1.1", "10.1.1.1", "10.1.1.2") == "10.1.1.1"
    assert ips("127.0.0.1", "10.1.1.1", "2001:db8::1") == "127.0.0.1,::1"
    assert ips("127.0.0.1", "10.1.1.1") == "127.0.0.1"


FILE = """
name: web-1
namespace: shop
service-account: web
ip: 10.1.1.1
label: {app: web, version: 1}
metadata: {NETWORK: n1, DEEP: {a: [1]}}
locality: eu/eu-1
interception: NONE
pilot: [pilot-a:15012@eu/eu-1, "pilot-b:15012"]
plaintext: true
token-file: /etc/token
delta: false
status-port: 16020
minimum-drain: 7s
envoy-flag: [--enable-core-dump]
dns: true
dns-upstream: 9.9.9.9:53
consul-service: {Name: web, Port: 8080}
probe: {httpGet: {port: 8080}}
app-probers: {/app-health/web/livez: {httpGet: {port: 1}}}
scrape: {scrape: true, port: 9}
proxy-config:
  concurrency: 2
  tracing: {sampling: 10}
  proxyMetadata: {ISTIO_META_COLOUR: blue}
"""


def _jwt(subject: str) -> str:
    parts = ({"alg": "ES256"}, {"sub": subject, "aud": "x"})
    return ".".join(
        [*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), "s"]
    )


@pytest.mark.parametrize(
    "text",
    [
        "mpjt_" + _jwt("spiffe://cluster.local/ns/shop/sa/web"),
        _jwt("spiffe://cluster.local/ns/shop/sa/web") + "\n",
        _jwt("system:serviceaccount:shop:web"),
    ],
    ids=["join token", "JWT", "Kubernetes"],
)
def test_a_token_says_namespace_and_account_where_nobody_does(machine: Machine, text: str) -> None:
    token = machine.folder / "token"
    token.write_text(text)
    flags = ("--token-file", str(token))
    node = machine.settings(*flags).node
    assert (node.namespace, node.metadata["SERVICE_ACCOUNT"]) == ("shop", "web")
    node = machine.settings(*flags, "--service-account", "other").node
    assert (node.namespace, node.metadata["SERVICE_ACCOUNT"]) == ("shop", "other")
    node = machine.settings(*flags, file="namespace: stage").node
    assert (node.namespace, node.metadata["SERVICE_ACCOUNT"]) == ("stage", "web")


def test_a_certificate_says_so_once_the_token_is_gone(machine: Machine) -> None:
    folder = machine.folder / "state" / "identity"
    folder.mkdir(mode=0o700, parents=True)
    made = write_certificates(machine.folder, "web", uris=("spiffe://cluster.local/ns/shop/sa/web",))
    (folder / "cert-chain.pem").write_bytes(made.certificate.read_bytes())
    node = machine.settings("--token-file", str(machine.folder / "gone")).node
    assert (node.namespace, node.metadata["SERVICE_ACCOUNT"]) == ("shop", "web")


@pytest.mark.parametrize("text", ["", "no token", "a.b.c", _jwt("somebody"), "x." + "W10." + "y"])
def test_what_says_no_name_changes_nothing(machine: Machine, text: str) -> None:
    token = machine.folder / "token"
    token.write_text(text)
    node = machine.settings("--token-file", str(token)).node
    assert (node.namespace, node.metadata["SERVICE_ACCOUNT"]) == ("default", "default")


def test_a_file_says_it_all(machine: Machine) -> None:
    settings = machine.settings(file=FILE)
    node = settings.node
    assert node.id == "sidecar~10.1.1.1~web-1.shop~shop.svc.cluster.local"
    assert (node.labels, node.interception) == ({"app": "web", "version": "1"}, Interception.NONE)
    assert node.locality == Locality("eu", "eu-1", "")
    assert node.metadata == {
        "NETWORK": "n1",
        "DEEP": {"a": [1]},
        "SERVICE_ACCOUNT": "web",
        "SYSTEM_ROOTS": system_roots({}),
        "COLOUR": "blue",
        "DNS_CAPTURE": "true",
        "DNS_AUTO_ALLOCATE": "true",
        "PROXY_CONFIG": {"tracing": {"sampling": 10.0}},
    }
    assert [pilot.address for pilot in settings.planes.addresses] == ["pilot-a:15012", "pilot-b:15012"]
    assert settings.planes.plaintext
    assert settings.credentials.token_file == Path("/etc/token")
    assert not settings.delta
    assert settings.ports.status == 16020
    assert (settings.envoy.minimum_drain, settings.envoy.extra_flags) == (7.0, ("--enable-core-dump",))
    assert (settings.dns.enabled, settings.dns.upstreams) == (True, ("9.9.9.9:53",))
    assert settings.consul.service == {"Name": "web", "Port": 8080}
    assert list(settings.probes) == [{"httpGet": {"port": 8080}}]
    assert list(settings.app_probers) == ["/app-health/web/livez"]
    assert settings.scrape == {"scrape": True, "port": 9}
    assert settings.proxy_config["concurrency"] == 2


def test_objects_of_several_places_are_merged(machine: Machine) -> None:
    settings = machine.settings(
        "--label",
        "version=v3",
        "--proxy-config",
        "{concurrency: 3}",
        file="label: {app: web, version: v1, tier: a}\nproxy-config: {concurrency: 1, meshId: m}\n",
        env={
            "ISTIO_METAJSON_LABELS": '{"tier": "b"}',
            "PROXY_CONFIG": "{concurrency: 2, serviceCluster: web}",
            "ISTIO_META_NETWORK": "n2",
            "ISTIO_METAJSON_METRICS": '{"a": {"b": 1}}',
        },
    )
    assert settings.node.labels == {"app": "web", "version": "v3", "tier": "b"}
    assert settings.proxy_config == {"concurrency": 3, "meshId": "m", "serviceCluster": "web"}
    assert settings.node.metadata["NETWORK"] == "n2"
    assert settings.node.metadata["a"] == {"b": 1}


def test_a_field_is_the_same_by_both_of_its_names(machine: Machine) -> None:
    file = "proxy-config: {proxy_metadata: {ISTIO_META_A: a, ISTIO_META_B: a}, drain_duration: 1s}"
    settings = machine.settings(
        file=file, env={"PROXY_CONFIG": "{proxyMetadata: {ISTIO_META_B: b}, drainDuration: 2s}"}
    )
    assert settings.proxy_config == {
        "proxyMetadata": {"ISTIO_META_A": "a", "ISTIO_META_B": "b"},
        "drainDuration": "2s",
    }


def test_variables_of_istios_agent_are_honoured(machine: Machine) -> None:
    probers = '{"/app-health/web/livez": {"httpGet": {"port": 1}}}'
    settings = machine.settings(
        env={
            "POD_NAME": "web-9",
            "SERVICE_ACCOUNT": "bookstore",
            "ISTIO_META_DNS_CAPTURE": "true",
            "DNS_PROXY_ADDR": "localhost:5353",
            "ISTIO_KUBE_APP_PROBERS": probers,
            "ISTIO_META_AUTO_REGISTER_GROUP": "web",
            "ENVOY_PROMETHEUS_PORT": "16090",
            "ENVOY_STATUS_PORT": "16021",
            "MINIMUM_DRAIN_DURATION": "9s",
            "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true",
            "SECRET_TTL": "12h",
            "ISTIO_DELTA_XDS": "false",
            "ISTIO_PROMETHEUS_ANNOTATIONS": '{"scrape": "true", "port": "9"}',
        }
    )
    node, ports = settings.node, settings.ports
    assert (node.name, node.metadata["SERVICE_ACCOUNT"]) == ("web-9", "bookstore")
    assert (node.metadata["DNS_CAPTURE"], node.metadata["AUTO_REGISTER_GROUP"]) == ("true", "web")
    assert node.metadata["WORKLOAD_NAME"] == "web"
    assert (settings.dns.enabled, settings.dns.listen, ports.dns) == (True, "127.0.0.1", 5353)
    assert (ports.prometheus, ports.readiness) == (16090, 16021)
    assert settings.app_probers == json.loads(probers)
    assert settings.auto_register_group == "web"
    assert (settings.envoy.minimum_drain, settings.envoy.exit_on_zero_active_connections) == (9.0, True)
    assert settings.credentials.lifetime == 12 * 3600
    assert not settings.delta
    assert settings.scrape == {"scrape": "true", "port": "9"}


def test_a_flag_wins_over_metadata_of_the_same_meaning(machine: Machine) -> None:
    env = {"ISTIO_META_INTERCEPTION_MODE": "NONE", "ISTIO_META_AUTO_REGISTER_GROUP": "a"}
    node = machine.settings("--interception", "TPROXY", "--auto-register-group", "b", env=env).node
    written: Any = node.to_dict()["metadata"]
    assert (written["INTERCEPTION_MODE"], written["AUTO_REGISTER_GROUP"]) == ("TPROXY", "b")


@pytest.mark.parametrize(
    ("given", "said"),
    [((), "split"), (("--sotw",), None), (("--metadata", "VIRTUAL_HOSTS=whole"), "whole")],
)
def test_an_envoy_with_delta_asks_for_separate_virtual_hosts_unless_told_otherwise(
    machine: Machine, given: tuple[str, ...], said: str | None
) -> None:
    assert machine.settings(*given).node.metadata.get("VIRTUAL_HOSTS") == said


def test_a_provided_certificate_counts_once_it_is_there(machine: Machine, tmp_path: Path) -> None:
    env = {"PROV_CERT": str(tmp_path)}
    assert machine.settings(env=env).credentials.certificate is None
    for name in ("cert-chain", "key", "root-cert"):
        (tmp_path / f"{name}.pem").touch()
    assert machine.settings(env=env).credentials.certificate == tmp_path / "cert-chain.pem"


def test_what_has_no_effect_is_said_once(machine: Machine) -> None:
    result = machine.run(
        *("--ip", "10.1.1.1", "--pilot", "a:1", "--plaintext", "--check"),
        env={
            "CA_ADDR": "istiod:15012",
            "TRUST_DOMAIN": "x",
            "ENVOY_STATUS_PORT": "many",
            "ISTIO_METAJSON_X": "[",
            "ISTIO_META_CERT_SIGNER": "example.com/signer",
            "PROXY_CONFIG": "{holdApplicationUntilProxyStarts: true, concurency: 2, tracing: {stackdriver: {}},"
            " proxyMetadata: {BOOTSTRAP_XDS_AGENT: 'true', ISTIO_META_A: b}}",
        },
    )
    assert result.exception is None
    lines = [line for line in result.stderr.splitlines() if "warning" in line]
    assert sorted(
        word for line in lines for word in ("CA_ADDR", "TRUST_DOMAIN", "ENVOY_STATUS_PORT") if word in line
    ) == [
        "CA_ADDR",
        "ENVOY_STATUS_PORT",
        "TRUST_DOMAIN",
    ]
    assert sum("holdApplicationUntilProxyStarts" in line for line in lines) == 1
    assert sum("stackdriver" in line for line in lines) == 1
    assert sum("did you mean concurrency" in line for line in lines) == 1
    assert sum("ISTIO_METAJSON_X" in line for line in lines) == 1
    assert sum("ISTIO_META_CERT_SIGNER" in line for line in lines) == 1
    assert sum("proxyMetadata." in line for line in lines) == 1
    assert sum("proxyMetadata.BOOTSTRAP_XDS_AGENT" in line for line in lines) == 1


def test_every_variable_without_effect_is_said_with_what_replaces_it(machine: Machine) -> None:
    """The page does not list them: it refers to these lines."""
    result = machine.run(
        "--ip", "10.1.1.1", "--pilot", "a:1", "--plaintext", "--check", env=dict.fromkeys(ANSWERED, "1")
    )
    said = [line for line in result.stderr.splitlines() if "variable of istio has no effect" in line]
    for name, reason in ANSWERED.items():
        assert sum(f"variable={name} " in line and reason in line.replace('\\"', '"') for line in said) == 1, name


def test_annotations_say_what_they_say_in_istio(machine: Machine) -> None:
    settings = machine.settings(
        "--annotation",
        "proxy.istio.io/config={concurrency: 4, proxyAdminPort: 17001, proxyMetadata: {ISTIO_META_A: b}}",
        "--annotation",
        "prometheus.io/port=9090",
        "--annotation",
        "status.sidecar.istio.io/port=17020",
        env={"PROXY_CONFIG": "{concurrency: 2, proxyAdminPort: 17000}"},
    )
    assert settings.proxy_config == {"concurrency": 2, "proxyAdminPort": 17000, "statusPort": 17020}
    assert settings.annotated_proxy_config["concurrency"] == 4
    assert "A" not in settings.node.metadata  # those in force are put there with the bootstrap
    assert settings.scrape == {"port": "9090"}
    assert (settings.ports.admin, settings.ports.status) == (17000, 17020)
    assert settings.node.metadata["ANNOTATIONS"]["prometheus.io/port"] == "9090"


def test_each_place_of_the_pages_order_wins_over_those_before_it(machine: Machine) -> None:
    """Place 1 says 1, and so on; the annotations of place 8 have no ``concurrency``, and objects no ``statusPort``."""
    listed = (
        PAGE.read_text(encoding="utf-8").partition("From the weakest to the strongest:\n\n")[2].partition("\n\n")[0]
    )
    assert [line.partition(". ")[2].replace("`", "") for line in listed.splitlines()] == [
        "defaultConfig of the MeshConfig, without values that are Istio's defaults",
        "the ProxyConfig object of the root namespace without a selector",
        "that of the proxy's namespace",
        "the annotation proxy.istio.io/config",
        "the ProxyConfig object of the namespace that selects the workload",
        "proxy-config in the file",
        "PROXY_CONFIG",
        "the annotations sidecar.istio.io/discoveryAddress, sidecar.istio.io/interceptionMode and "
        "status.sidecar.istio.io/port",
        "--proxy-config",
    ]

    def in_force(strongest: int) -> tuple[int | None, int | None]:
        """``concurrency`` and ``statusPort`` with all said up to this place."""

        def says(place: int) -> str:
            return f"{{concurrency: {place}, statusPort: {17_000 + place}}}" if place <= strongest else "{}"

        objects = {
            2: proxy_config("all", "istio-system", 2),
            3: proxy_config("shop", "shop", 3),
            5: proxy_config("web", "shop", 5, labels="{app: web}"),
        }
        annotation = {CONFIG_ANNOTATION: says(4)}
        plane = settings_of_mesh(
            *(text for place, text in objects.items() if place <= strongest),
            mesh_config=f"defaultConfig: {says(1)}",
            ANNOTATIONS=annotation,
        )
        annotated = {**annotation, **({"status.sidecar.istio.io/port": "17008"} if strongest >= 8 else {})}
        flags = [word for name, text in annotated.items() for word in ("--annotation", f"{name}={text}")]
        settings = machine.settings(
            *(*flags, "--proxy-config", says(9)),
            file=f"proxy-config: {says(6)}\n",
            env={"PROXY_CONFIG": says(7)},
        )
        return envoy_settings(settings, bytes(plane)).concurrency, settings.ports.status

    for place in range(1, 10):
        assert in_force(place)[0] == (place if place != 8 else 7)
    assert [in_force(place)[1] for place in (6, 7, 8, 9)] == [17006, 17007, 17008, 17009]


def test_an_annotation_of_the_proxy_config_counts_where_nobody_else_says_it(machine: Machine) -> None:
    config = "{discoveryAddress: 'istiod:15010', controlPlaneAuthPolicy: NONE, tracing: {sampling: 5}, concurrency: 4}"
    settings = machine.settings(file=f'ip: 10.1.1.1\n# no pilot\nannotation: {{proxy.istio.io/config: "{config}"}}\n')
    assert [pilot.address for pilot in settings.planes.addresses] == ["istiod:15010"]
    assert settings.node.metadata["PROXY_CONFIG"] == {"tracing": {"sampling": 5.0}}
    written: Any = settings.node.to_dict()["metadata"]
    assert written["ANNOTATIONS"] == {"proxy.istio.io/config": config}  # from which the control plane reads it
    assert envoy_settings(settings).concurrency == 4
    assert envoy_settings(settings, encoded({"concurrency": 3})).concurrency == 3


def test_a_proxy_config_of_this_machine_says_settings_that_nobody_gave(machine: Machine) -> None:
    config = (
        "{discoveryAddress: 'istiod:15010', controlPlaneAuthPolicy: NONE, interceptionMode: TPROXY, binaryPath: /e}"
    )
    settings = machine.settings(file=f"proxy-config: {config}\nip: 10.1.1.1\n# no pilot: that one is meant\n")
    assert [pilot.address for pilot in settings.planes.addresses] == ["istiod:15010"]
    assert settings.planes.plaintext
    assert settings.node.interception is Interception.TPROXY
    assert settings.envoy.binary == Path("/e")


def test_proxy_metadata_say_what_variables_of_istio_say(machine: Machine) -> None:
    file = "proxy-config: {proxyMetadata: {ISTIO_META_DNS_CAPTURE: true, ISTIO_META_AUTO_REGISTER_GROUP: web}}"
    settings = machine.settings(file=file)
    assert (settings.dns.enabled, settings.auto_register_group) == (True, "web")
    assert settings.node.metadata["DNS_CAPTURE"] == "true"
    without = machine.settings("--no-dns", "--auto-register-group", "other", file=file)
    assert (without.dns.enabled, without.auto_register_group) == (False, "other")
    assert "DNS_CAPTURE" not in without.node.metadata
    assert without.node.metadata["AUTO_REGISTER_GROUP"] == "other"


def test_the_drain_is_as_proxy_metadata_say_unless_its_flags_are_given(machine: Machine) -> None:
    metadata = {"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true", "MINIMUM_DRAIN_DURATION": "9s"}
    of_plane = encoded({"proxyMetadata": metadata})
    nowhere = envoy_settings(machine.settings())
    assert (nowhere.exit_on_zero_active_connections, nowhere.minimum_drain) == (False, 5.0)
    of_file = envoy_settings(machine.settings(file=f"proxy-config: {{proxyMetadata: {json.dumps(metadata)}}}"))
    for found in (of_file, envoy_settings(machine.settings(), of_plane)):
        assert (found.exit_on_zero_active_connections, found.minimum_drain) == (True, 9.0)
    flags = ("--exit-after-drain", "--minimum-drain", "5s")
    given = envoy_settings(machine.settings(*flags), of_plane)
    assert (given.exit_on_zero_active_connections, given.minimum_drain) == (False, 5.0)
    matcher = json.dumps(agent_bootstrap(machine.settings(), of_plane)["stats_config"])
    assert "downstream_cx_active" in matcher  # by which the end of connections is seen


def test_a_readiness_probe_of_the_proxy_config_is_the_probe(machine: Machine) -> None:
    config = "proxy-config: {readinessProbe: {tcpSocket: {port: 1}}}"
    assert list(machine.settings(file=config).probes) == [{"tcpSocket": {"port": 1}}]
    own = '{"tcpSocket": {"port": 2}}'
    assert list(machine.settings("--probe", own, file=config).probes) == [{"tcpSocket": {"port": 2}}]


@pytest.mark.parametrize("none", [("--status-port", "0"), ("--annotation", "status.sidecar.istio.io/port=0")])
def test_readiness_goes_with_the_port_that_answers_it(machine: Machine, none: tuple[str, ...]) -> None:
    ports = machine.settings(*none).ports
    assert (ports.status, ports.readiness, ports.prometheus) == (0, 0, 15090)


def test_a_router_is_a_gateway(machine: Machine) -> None:
    node = machine.settings(kind="router").node
    assert node.type is NodeType.ROUTER
    assert node.id.startswith("router~")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("name: a\npilt: b", "proxy.yaml:2: there is no setting 'pilt'; did you mean pilot?"),
        ("tokenFile: b", "proxy.yaml:1: there is no setting 'tokenFile'; did you mean token-file?"),
        ("name: [", ": this is not YAML"),
        ("- name", "proxy.yaml:1: expected settings"),
        ("name: a\nname: b", "proxy.yaml:2: name is there already"),
        ("name:", "proxy.yaml:1: name has no value"),
        ("name: [a, b]", "proxy.yaml:1: name has one value"),
        ("\nstatus-port: 99999", "proxy.yaml:2: status-port: 99999 is not in the range"),
        ("ip: 10.1.1", "proxy.yaml:1: ip: '10.1.1' is not an IP address"),
        ("label: a=b", "proxy.yaml:1: label is an object"),
        ("label:\n  a: [b]", "proxy.yaml:2: label a must be a string"),
        (
            "proxy-config:\n  concurency: 1",
            "proxy.yaml:2: there is no field of a ProxyConfig 'concurency'; did",
        ),
        ("proxy-config:\n  tracing:\n    zipkin: 1", "proxy.yaml:3: proxy-config: tracing.zipkin: expected an object"),
        ("minimum-drain: soon", "proxy.yaml:1: minimum-drain: 'soon' is not a duration"),
        ("dns: perhaps", "proxy.yaml:1: dns: "),
        ("log-level: loud", "proxy.yaml:1: log-level: 'loud': unknown level"),
        ("pilot: http://a", "proxy.yaml:1: pilot: "),
        ("x: !!python/object:os.system {}", "proxy.yaml:1: "),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_place(machine: Machine, file: str, message: str) -> None:
    assert message in machine.mistake(file=file)


PLANE = ("--ip", "10.1.1.1", "--pilot", "a:1", "--plaintext")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--plaintext",), "no control plane: name one with --pilot, MESH_PILOT_PROXY_PILOT or pilot in the file"),
        (("--pilot", "a:1"), "save what mesh-pilot ca root prints"),
        (("--pilot", "a:1", "--tls-ca", "/nowhere/root.pem"), "No such file"),
        ((*PLANE, "--ip", "10.1.1.300"), "not an IP address"),
        ((*PLANE, "--name", "a~b"), "--name: 'a~b' is not a name"),
        ((*PLANE, "--namespace", ""), "--namespace: '' is not a name"),
        ((*PLANE, "--status-port", "15021"), "--status-port and --readiness-port are both 15021"),
        ((*PLANE, "--admin-port", "0"), "0 is not in the range 1<=x<=65535"),
        (
            (*PLANE, "--status-port", "0", "--readiness-port", "15021"),
            "--readiness-port is answered by --status-port, which is 0: set both to 0",
        ),
        ((*PLANE, "--envoy-log-level", "loud"), "'loud' is not one of 'trace', 'debug'"),
        ((*PLANE, "--cert-chain", "a"), "needs all of --cert-chain, --key and --root-cert"),
        ((*PLANE, "--token-file", "a", "--sds-socket", "b"), "--token-file and --sds-socket exclude each other"),
        ((*PLANE, "--proxy-config", "{concurrency: x}"), "--proxy-config: concurrency: expected a whole number"),
        ((*PLANE, "--proxy-config", "["), "this is not YAML"),
        ((*PLANE, "--annotation", "proxy.istio.io/config=x"), "annotation proxy.istio.io/config: expected an object"),
        ((*PLANE, "--run-dir", "/proc/nobody"), "/proc/nobody: "),
        ((*PLANE, "--state-dir", "/dev/null"), "/dev/null: "),
        ((*PLANE, "--config", "/nowhere.yaml"), "name another file with --config"),
    ],
)
def test_a_mistake_in_the_flags_is_one_line_that_says_what_to_do(
    machine: Machine, flags: tuple[str, ...], message: str
) -> None:
    assert message in machine.mistake(*flags)


def test_a_socket_whose_path_is_too_long_is_refused(machine: Machine, tmp_path: Path) -> None:
    assert "name a shorter folder with --run-dir" in machine.mistake(*PLANE, "--run-dir", str(tmp_path / ("x" * 120)))


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_unusable(tmp_path) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert why_unusable(tmp_path).startswith("it belongs to user ")
    assert why_unusable(tmp_path).endswith("this runs as 54321")


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    assert why_unusable(tmp_path) == f"others may write there, and it is for private keys: chmod g-w {tmp_path}"
    tmp_path.chmod(0o755)
    assert why_unusable(tmp_path) == ""


def test_a_check_makes_nothing(machine: Machine, tmp_path: Path) -> None:
    before = {*tmp_path.iterdir()}
    assert "the settings are good" in machine.run(*PLANE, "--check").stdout
    assert {*tmp_path.iterdir()} == before | {machine.file}
    (tmp_path / "file").touch()
    assert f"it cannot be made, because {tmp_path / 'file'} cannot be written" in machine.mistake(
        *PLANE, "--check", "--state-dir", str(tmp_path / "file" / "a" / "b")
    )


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ("sidecar.istio.io/statsEvictionInterval=10s", "statistics are kept"),
        ("sidecar.istio.io/statsFlushInterval=soon", "'soon' is not a duration"),
        ("sidecar.istio.io/statsHistogramBuckets=[1]", "expected JSON"),
        ("traffic.sidecar.istio.io/excludeOutboundPorts=1", "does not read it"),
    ],
)
def test_an_annotation_without_effect_is_a_line_in_the_log(machine: Machine, annotation: str, reason: str) -> None:
    good = "sidecar.istio.io/statsFlushInterval=10s" if "Flush" not in annotation else "prometheus.io/port=1"
    result = machine.run(*PLANE, "--check", "--annotation", annotation, "--annotation", good)
    (line,) = [line for line in result.stderr.splitlines() if "annotation has no effect" in line]
    assert annotation.partition("=")[0] in line
    assert reason in line


@pytest.mark.envoy
def test_a_custom_bootstrap_is_judged_by_envoy_itself(machine: Machine, tmp_path: Path, envoy_binary: Path) -> None:
    custom = tmp_path / "custom.yaml"
    flags = (*PLANE, "--check", "--custom-bootstrap", str(custom), "--envoy", str(envoy_binary))
    custom.write_text("static_resources: {clusters: [{name: mine, type: STATIC}]}")
    assert "the settings are good" in machine.run(*flags).stdout
    custom.write_text("static_resources: {clusters: [{name: mine, connect_timeout: soon}]}")
    result = machine.run(*flags)
    assert isinstance(result.exception, AgentError | click.ClickException)
    assert f"Envoy refuses the bootstrap with {custom}: " in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_service_of_consul_says_who_we_are() -> None:
    settings, labels = described(
        {
            "ID": "web-1",
            "Service": "web",
            "Address": "10.1.1.7",
            "Port": 8080,
            "Datacenter": "dc1",
            "Meta": {
                "namespace": "shop",
                "service_account": "spiffe://cluster.local/ns/shop/sa/web",
                "version": "v1",
                "protocol": "http",
                "region": "eu",
                "zone": "eu-1",
                "port_admin": "9",
            },
        }
    )
    assert settings == {
        "name": "web-1",
        "namespace": "shop",
        "service_account": "web",
        "ip": "10.1.1.7",
        "locality": "eu/eu-1",
    }
    assert labels == {"app": "web", "version": "v1"}


@pytest.mark.process
async def test_a_consul_agent_is_asked_and_what_it_said_last_counts_while_it_is_away(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    def asked(address: str, service: str = "web-1") -> tuple[Mapping[str, Any], Mapping[str, str]]:
        return from_consul(ConsulAgentSettings(address=address, service_id=service), tmp_path, remarks)

    remarks: list[Remark] = []
    async with real_consul(tmp_path, free_ports(4)) as consul:
        await consul.register("web", id="web-1", meta={"namespace": "shop"})
        settings, labels = await trio.to_thread.run_sync(asked, consul.address)
        assert (settings["name"], settings["namespace"], labels["app"]) == ("web-1", "shop", "web")
        with pytest.raises(AgentError, match="web-9"):
            await trio.to_thread.run_sync(asked, consul.address, "web-9")
        address = consul.address
    assert remarks == []
    assert (await trio.to_thread.run_sync(asked, address)) == (settings, labels)
    assert [remark.event for remark in remarks] == ["consul agent is away"]
    with pytest.raises(AgentError, match="web-2"):
        await trio.to_thread.run_sync(asked, address, "web-2")


def test_every_setting_is_a_flag_a_variable_and_a_key() -> None:
    assert variable_of("--exit-on-zero-active-connections/--exit-after-drain", PREFIX) == (
        "MESH_PILOT_PROXY_EXIT_ON_ZERO_ACTIVE_CONNECTIONS"
    )
    names = [name_of(flag) for flags in FLAGS.values() for flag, _ in flags]
    assert len(names) == len(set(names))
    assert {*HONOURED.values()} <= set(names)
    assert not HONOURED.keys() & ANSWERED.keys()


def variables() -> str:
    """The variables with an effect; ``--check`` says what replaces the others."""
    rows = {**{name: f"`--{setting}`" for name, setting in HONOURED.items()}, **SPECIAL}
    return "".join(f"- `{name}`: {rows[name]}\n" for name in sorted(rows))


def effects() -> str:
    parts = []
    for place in Place:
        if place is not Place.NOWHERE:
            rows = sorted(effects_of_fields().items())
            lines = [f"- `{name}`{text and f': {text}'}\n" for name, (where, text) in rows if where is place]
            parts.append(f"**{place.value}**\n\n{''.join(lines)}")
    return "\n".join(parts)


def settings_list() -> str:
    parts = []
    for title, flags in FLAGS.items():
        lines = [f"**{title}**\n"]
        for flag, attributes in flags:
            help_text, _, found = attributes["help"].partition("  [default: ")
            default = attributes.get("default", "")
            if isinstance(default, bool) or attributes.get("is_flag"):
                first, _, second = flag.partition("/")
                found, default = (f"`{first if default else second}`" if second else "off"), ""
            text = f"`{default}`" if default != "" and default is not None else found.removesuffix("]")
            name = "/".join(f"`{part}`" for part in flag.split("/"))
            said = ", ".join(filter(None, (text, "repeatable" if attributes.get("multiple") else "")))
            lines.append(f"- {name}{f' ({said})' if said else ''}: {help_text}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


PARTS = {"settings": settings_list, "variables": variables, "effects": effects}


def pieces(text: str, name: str) -> tuple[str, str, str]:
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    head, _, rest = text.partition(begin)
    body, _, tail = rest.partition(end)
    return head + begin, body, end + tail


@pytest.mark.parametrize("name", PARTS)
def test_the_page_has_every_setting_variable_and_field(name: str) -> None:
    """``python -m tests.cli.test_proxy_command`` writes the lists again."""
    assert pieces(PAGE.read_text(encoding="utf-8"), name)[1] == PARTS[name]()


def test_the_page_has_every_annotation_of_a_proxy_that_is_read() -> None:
    items = pieces(PAGE.read_text(encoding="utf-8"), "annotations")[1].splitlines()
    named = [name for item in items for name in re.findall(r"`([^`]+)`", item.partition(": ")[0])]
    scraped = {f"{SCRAPED}{name}" for name in ("scrape", "port", "path")}
    read = {*READ_ELSEWHERE, *(f"{ANNOTATION}{name}" for name in READ), *scraped, SERVICE_ANNOTATION}
    assert sorted(named) == sorted(read)
    assert {*ANNOTATIONS, CONFIG_ANNOTATION} == {*READ_ELSEWHERE}
    assert dict(annotation_problems(dict.fromkeys([*READ_ELSEWHERE, *scraped, SERVICE_ANNOTATION], "x"))) == {}


def test_fields_without_effect_say_what_to_do() -> None:
    assert all(text for place, text in effects_of_fields().values() if place is Place.NOWHERE)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    for part, make in PARTS.items():
        before, _, after = pieces(page, part)
        page = before + make() + after
    PAGE.write_text(page, encoding="utf-8")
