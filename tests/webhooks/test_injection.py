"""Injection: which Pods get a sidecar, what it is like, and that its agent can run with what it gets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.agent.run.bootstrap import envoy_settings
from mesh_pilot.kubernetes.webhooks.injection.configuration import (
    InjectionSettings,
    InjectionSettingsError,
    read_settings,
)
from mesh_pilot.kubernetes.webhooks.injection.context import InjectionTemplateError
from mesh_pilot.kubernetes.webhooks.injection.decision import InjectionPolicy, InjectionRules, decide, read_selector
from mesh_pilot.kubernetes.webhooks.injection.inject import InjectionError, Injector, difference
from mesh_pilot.kubernetes.webhooks.injection.merge import overlaid
from mesh_pilot.kubernetes.webhooks.injection.workload import workload_of
from mesh_pilot.kubernetes.webhooks.paths import variables_of
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.sample import examples
from tests.webhooks.agent_of_pod import CPUS, HOST_IP, NODE, POD_IP, agent_settings_of, check_rules_of, environment_of
from tests.webhooks.pods import IMAGE, SETTINGS, container, injected, injector, names, pod, variables

JOBS = (read_selector({"matchExpressions": [{"key": "job-name", "operator": "Exists"}]}, ""),)
WEBS = (read_selector({"matchLabels": {"app": "web"}}, ""),)
OFF = InjectionRules(InjectionPolicy.DISABLED)


@pytest.mark.parametrize(
    ("found", "namespace", "rules", "expected"),
    [
        (pod(), "shop", InjectionRules(), True),
        (pod(), "shop", OFF, False),
        (pod(hostNetwork=True, labels={"sidecar.istio.io/inject": "true"}), "shop", InjectionRules(), False),
        (pod(labels={"sidecar.istio.io/inject": "true"}), "kube-system", InjectionRules(), False),
        (pod(labels={"sidecar.istio.io/inject": "true"}), "shop", OFF, True),
        (pod(annotations={"sidecar.istio.io/inject": "true"}), "shop", OFF, True),
        (pod(annotations={"sidecar.istio.io/inject": "false"}), "shop", InjectionRules(), False),
        (pod(labels={"sidecar.istio.io/inject": "false"}, annotations={"sidecar.istio.io/inject": "true"}), "shop",
         InjectionRules(), False),
        (pod(labels={"job-name": "a"}), "shop", InjectionRules(never=JOBS), False),
        (pod(labels={"job-name": "a", "sidecar.istio.io/inject": "true"}), "shop", InjectionRules(never=JOBS), True),
        (pod(), "shop", attrs.evolve(OFF, always=WEBS), True),
        (pod(labels={"job-name": "a"}), "shop", attrs.evolve(OFF, always=WEBS, never=JOBS), False),
        (pod(annotations={"sidecar.istio.io/inject": "maybe"}), "shop", InjectionRules(), True),
    ],
)  # fmt: skip
def test_who_gets_a_sidecar(found: Any, namespace: str, rules: InjectionRules, expected: bool) -> None:
    assert decide(found, namespace, rules).injects is expected


def test_a_label_that_is_neither_true_nor_false_is_a_warning() -> None:
    (warning,) = injected(pod(labels={"sidecar.istio.io/inject": "yes"})).warnings
    assert warning == 'label sidecar.istio.io/inject is "yes", neither true nor false, and has no effect'


def of(kind: str, name: str, version: str) -> dict[str, Any]:
    """The metadata of a Pod that something else made."""
    owner = {"apiVersion": version, "kind": kind, "name": name, "controller": True}
    return {"generateName": "x", "ownerReferences": [owner]}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"name": "a"}, "Pod a v1"),
        (pod()["metadata"], "Deployment web apps/v1"),
        (of("ReplicaSet", "a-b", "apps/v1"), "ReplicaSet a-b apps/v1"),
        (of("Job", "nightly-28812345", "batch/v1"), "CronJob nightly batch/v1"),
        (of("Job", "once", "batch/v1"), "Job once batch/v1"),
        (of("StatefulSet", "db", "apps/v1"), "StatefulSet db apps/v1"),
        ({"generateName": "x", "ownerReferences": [{"apiVersion": "v1", "kind": "Thing", "name": "y"}]}, "Pod  v1"),
    ],
)
def test_whose_pod_it_is(metadata: Mapping[str, Any], expected: str) -> None:
    found = workload_of({"metadata": metadata}, "shop")
    assert f"{found.kind} {found.name} {found.api_version}" == expected


def test_the_sidecar_of_a_pod(tmp_path: Path) -> None:
    result = injected(pod())
    found = result.pod
    assert result.is_injected
    assert names(found, "containers") == ["web"]
    assert names(found, "initContainers") == ["istio-init", "istio-proxy"]
    proxy = container(found)
    assert proxy["restartPolicy"] == "Always"
    assert proxy["image"] == IMAGE
    assert proxy["securityContext"]["runAsUser"] == 1337
    assert found["metadata"]["labels"].items() >= {
        "security.istio.io/tlsMode": "istio",
        "service.istio.io/canonical-name": "web",
        "service.istio.io/canonical-revision": "latest",
    }.items()  # fmt: skip
    status = json.loads(found["metadata"]["annotations"]["sidecar.istio.io/status"])
    assert status["initContainers"] == ["istio-init", "istio-proxy"]
    assert status["containers"] is None
    assert status["revision"] == "default"
    (token,) = (v for v in found["spec"]["volumes"] if v["name"] == "istio-token")
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "istio-ca"

    agent = agent_settings_of(found, tmp_path)
    assert agent.node.type is NodeType.SIDECAR
    assert (agent.node.name, agent.node.namespace, agent.node.ip) == ("pod-1", "shop", POD_IP)
    assert agent.node.labels["app"] == "web"
    assert agent.node.labels["service.istio.io/canonical-name"] == "web"
    assert [str(pilot.address) for pilot in agent.planes.addresses] == ["istiod.istio-system.svc:15012"]
    assert agent.credentials.token_file == tmp_path / "istio-token"
    assert agent.planes.ca == tmp_path / "root-cert.pem"
    assert agent.scrape == {"scrape": "false"}, "its own annotations are not the application's"
    metadata = agent.node.metadata
    assert metadata["CLUSTER_ID"] == "eu-1"
    assert metadata["WORKLOAD_NAME"] == "web"
    assert metadata["OWNER"] == "kubernetes://apis/apps/v1/namespaces/shop/deployments/web"
    assert metadata["NODE_NAME"] == NODE
    assert metadata["MESH_ID"] == "cluster.local"
    assert metadata["APP_CONTAINERS"] == "web"
    assert json.loads(metadata["POD_PORTS"]) == [{"name": "http", "containerPort": 8080}]
    assert metadata["SERVICE_ACCOUNT"] == "default"
    assert environment_of(found)["HOST_IP"] == HOST_IP
    assert envoy_settings(agent).concurrency == int(CPUS), "not one thread for each CPU of the node"
    rules = check_rules_of(found)
    assert "1337" in rules
    assert "15006" in rules


ANNOTATED: Mapping[str, tuple[dict[str, str], dict[str, Any]]] = {
    "image": ({"sidecar.istio.io/proxyImage": "other.example/proxy:2"}, {"image": "other.example/proxy:2"}),
    "resources": (
        {"sidecar.istio.io/proxyCPU": "50m", "sidecar.istio.io/proxyMemoryLimit": "1Gi"},
        {"resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "1Gi"}}},
    ),
    "readiness": (
        {
            "readiness.status.sidecar.istio.io/initialDelaySeconds": "5",
            "readiness.status.sidecar.istio.io/periodSeconds": "7",
            "readiness.status.sidecar.istio.io/failureThreshold": "9",
        },
        {"readinessProbe": {
            "httpGet": {"path": "/healthz/ready", "port": 15021},
            "initialDelaySeconds": 5, "periodSeconds": 7, "timeoutSeconds": 3, "failureThreshold": 9,
        }},
    ),
    "no port": ({"status.sidecar.istio.io/port": "0"}, {"readinessProbe": None, "startupProbe": None}),
    "volumes": (
        {
            "sidecar.istio.io/userVolume": '{"certs": {"secret": {"secretName": "certs"}}}',
            "sidecar.istio.io/userVolumeMount": '{"certs": {"mountPath": "/certs", "readOnly": true}}',
        },
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANNOTATED)
def test_annotations_about_the_container(case: str) -> None:
    annotations, expected = ANNOTATED[case]
    found = injected(pod(annotations=annotations)).pod
    proxy = container(found)
    assert {name: proxy.get(name) for name in expected} == expected
    if case == "volumes":
        assert {"name": "certs", "secret": {"secretName": "certs"}} in found["spec"]["volumes"]
        assert {"name": "certs", "mountPath": "/certs", "readOnly": True} in proxy["volumeMounts"]


def arguments(found: Mapping[str, Any]) -> dict[str, str]:
    """The flags of the init container."""
    words = container(found, "istio-init")["args"][2:]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_annotations_about_traffic_are_flags_of_the_rules() -> None:
    assert arguments(injected(pod()).pod) == {
        "-p": "15001", "-z": "15006", "-u": "1337", "-m": "REDIRECT", "-i": "*", "-x": "", "-b": "*",
        "-d": "15090,15021,15020", "-q": "", "-o": "",
    }  # fmt: skip
    prefix = "traffic.sidecar.istio.io"
    found = injected(
        pod(
            annotations={
                f"{prefix}/includeOutboundIPRanges": "10.0.0.0/8",
                f"{prefix}/excludeOutboundIPRanges": "10.1.0.0/16",
                f"{prefix}/includeInboundPorts": "8080",
                f"{prefix}/excludeInboundPorts": "9000,15020",
                f"{prefix}/includeOutboundPorts": "443",
                f"{prefix}/excludeOutboundPorts": "5432",
                f"{prefix}/excludeInterfaces": "eth1",
                "istio.io/reroute-virtual-interfaces": "net1",
                "status.sidecar.istio.io/port": "16000",
            }
        )
    ).pod
    assert arguments(found).items() >= {
        "-i": "10.0.0.0/8", "-x": "10.1.0.0/16", "-b": "8080", "-d": "15090,15021,9000,15020,16000", "-q": "443",
        "-o": "5432", "-c": "eth1", "-k": "net1",
    }.items()  # fmt: skip
    assert "5432" in check_rules_of(found)


def test_ways_of_interception(tmp_path: Path) -> None:
    found = injected(pod(annotations={"sidecar.istio.io/interceptionMode": "NONE"})).pod
    assert names(found, "initContainers") == ["istio-proxy"]
    assert agent_settings_of(found, tmp_path).node.interception is Interception.NONE
    found = injected(pod(), proxy_config={"interceptionMode": "TPROXY"}).pod
    context = container(found)["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (0, 1337, False)
    assert context["capabilities"]["add"] == ["NET_ADMIN"]
    assert arguments(found)["-m"] == "TPROXY"
    assert "tproxy" in check_rules_of(found)
    assert agent_settings_of(found, tmp_path).node.interception is Interception.TPROXY


def test_a_sidecar_beside_the_containers_where_it_is_not_native() -> None:
    first = [{"name": "setup", "image": "x"}]
    found = injected(pod(annotations={"sidecar.istio.io/nativeSidecar": "false"}, initContainers=first)).pod
    assert names(found, "containers") == ["web", "istio-proxy"]
    assert names(found, "initContainers") == ["setup", "istio-init"], (
        "the rules come last: nothing is in front of setup"
    )
    assert "lifecycle" not in container(found)
    native = injected(pod(initContainers=first)).pod
    assert names(native, "initContainers") == ["istio-init", "istio-proxy", "setup"], "setup is part of the mesh"
    held = injected(
        pod(), by=injector(attrs.evolve(SETTINGS, native_sidecars=False)),
        proxy_config={"holdApplicationUntilProxyStarts": True},
    ).pod  # fmt: skip
    assert names(held, "containers") == ["istio-proxy", "web"]
    assert container(held)["lifecycle"] == {"postStart": {"exec": {"command": ["mesh-pilot", "proxy", "wait"]}}}


PROBED = [
    {
        "name": "web",
        "image": "x",
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/up", "port": "http", "scheme": "HTTPS"}, "timeoutSeconds": 3},
        "livenessProbe": {"tcpSocket": {"port": 8081}, "periodSeconds": 5},
        "startupProbe": {"grpc": {"port": 9000, "service": "x"}},
        "lifecycle": {
            "preStop": {"httpGet": {"path": "/bye", "port": 8080}},
            "postStart": {"exec": {"command": ["a"]}},
        },
    },
    {"name": "exec", "image": "y", "livenessProbe": {"exec": {"command": ["true"]}}},
]


def test_probes_go_through_the_agent(tmp_path: Path) -> None:
    found = injected(pod(containers=PROBED)).pod
    web = container(found, "web")
    assert web["readinessProbe"] == {
        "httpGet": {"path": "/app-health/web/readyz", "port": 15020, "scheme": "HTTP"}, "timeoutSeconds": 3,
    }  # fmt: skip
    assert web["livenessProbe"] == {"httpGet": {"path": "/app-health/web/livez", "port": 15020}, "periodSeconds": 5}
    assert web["startupProbe"] == {"httpGet": {"path": "/app-health/web/startupz", "port": 15020}}
    assert web["lifecycle"]["preStop"] == {"httpGet": {"path": "/app-lifecycle/web/prestopz", "port": 15020}}
    assert web["lifecycle"]["postStart"] == {"exec": {"command": ["a"]}}
    assert container(found, "exec") == PROBED[1]
    assert agent_settings_of(found, tmp_path).app_probers == {
        "/app-health/web/readyz": {"httpGet": {"path": "/up", "port": 8080, "scheme": "HTTPS"}, "timeoutSeconds": 3},
        "/app-health/web/livez": {"tcpSocket": {"port": 8081}},
        "/app-health/web/startupz": {"grpc": {"port": 9000, "service": "x"}},
        "/app-lifecycle/web/prestopz": {"httpGet": {"path": "/bye", "port": 8080}},
    }
    kept = injected(pod(containers=PROBED, annotations={"sidecar.istio.io/rewriteAppHTTPProbers": "false"})).pod
    assert container(kept, "web") == PROBED[0]


def test_metrics_are_merged_at_the_agent(tmp_path: Path) -> None:
    own = {"prometheus.io/scrape": "true", "prometheus.io/port": "9102", "prometheus.io/path": "/m", "other": "x"}
    found = injected(pod(annotations=own)).pod
    annotations = found["metadata"]["annotations"]
    assert (annotations["prometheus.io/port"], annotations["prometheus.io/path"]) == ("15020", "/stats/prometheus")
    assert annotations["other"] == "x"
    assert agent_settings_of(found, tmp_path).scrape == {"scrape": "true", "port": "9102", "path": "/m"}
    for same in (
        injected(pod(annotations={**own, "prometheus.io/scrape": "false"})).pod,
        injected(pod(annotations={**own, "prometheus.istio.io/merge-metrics": "false"})).pod,
        injected(pod(annotations=own), mesh={"enablePrometheusMerge": False}).pod,
    ):
        assert same["metadata"]["annotations"]["prometheus.io/port"] == "9102"
    with pytest.raises(InjectionError, match="15090, which is Envoy's metrics"):
        injected(pod(annotations={**own, "prometheus.io/port": "15090"}))


def test_a_container_of_the_users_is_merged() -> None:
    own = {
        "name": "istio-proxy",
        "image": "auto",
        "resources": {"requests": {"cpu": "123m"}},
        "env": [{"name": "MORE", "value": "1"}],
        "volumeMounts": [{"name": "certs", "mountPath": "/etc/certs"}],
        "securityContext": {"runAsUser": 1234},
    }
    containers = [{"name": "web", "image": "x"}, own]
    found = injected(pod(containers=containers, volumes=[{"name": "certs", "emptyDir": {}}])).pod
    proxy = container(found)
    assert names(found, "containers") == ["web"], "it is where a native sidecar is"
    assert proxy["image"] == IMAGE
    assert proxy["resources"]["requests"] == {"cpu": "123m", "memory": "128Mi"}
    assert variables(found)["MORE"] == "1"
    assert {"name": "certs", "mountPath": "/etc/certs"} in proxy["volumeMounts"]
    assert arguments(found)["-u"] == "1234", "the rules let through the user that it runs as"
    overrides = json.loads(found["metadata"]["annotations"]["proxy.istio.io/overrides"])
    assert overrides["initContainers"][0]["resources"] == {"requests": {"cpu": "123m"}}
    assert "image" not in overrides["initContainers"][0]
    assert variables(found)["ISTIO_META_APP_CONTAINERS"] == "web"


def test_a_gateway_is_a_router(tmp_path: Path) -> None:
    found = injected(
        pod(annotations={"inject.istio.io/templates": "gateway"}, containers=[{"name": "istio-proxy", "image": "auto"}])
    ).pod
    assert names(found, "containers") == ["istio-proxy"]
    assert "initContainers" not in found["spec"]
    assert container(found)["image"] == IMAGE
    assert agent_settings_of(found, tmp_path).node.type is NodeType.ROUTER


def test_the_proxy_config_in_force_and_variables_of_the_path(tmp_path: Path) -> None:
    config = {
        "discoveryAddress": "istiod-2.istio-system.svc:15012",
        "proxyMetadata": {"ISTIO_META_DNS_CAPTURE": "true", "A": "b"},
        "concurrency": 4,
        "image": {"imageType": "debug"},
    }
    values = {"global": {"hub": "hub.example", "tag": "1.2-distroless", "proxy": {"image": "proxy"}}}
    found = injected(
        pod(labels={"topology.istio.io/network": "own"}), by=injector(values=values), proxy_config=config,
        variables=variables_of("/inject/cluster/eu-2/net/blue"),
    ).pod  # fmt: skip
    assert container(found)["image"] == "hub.example/proxy:1.2-debug"
    agent = agent_settings_of(found, tmp_path)
    assert [str(pilot.address) for pilot in agent.planes.addresses] == ["istiod-2.istio-system.svc:15012"]
    assert agent.dns.enabled
    assert "concurrency" not in agent.proxy_config, "the control plane says it, and may change it"
    assert agent.node.metadata["CLUSTER_ID"] == "eu-2"
    assert agent.node.metadata["NETWORK"] == "own"
    assert variables(found, "istio-init") == {"ISTIO_META_DNS_CAPTURE": "true", "A": "b"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/inject", {}),
        ("/inject/cluster/a/net/b--slash--c", {"ISTIO_META_CLUSTER_ID": "a", "ISTIO_META_NETWORK": "b/c"}),
        ("/inject/own/x/odd", {"OWN": "x"}),
        ("/inject/:ENV:cluster=a:ENV:x=", {"ISTIO_META_CLUSTER_ID": "a", "X": ""}),
        ("/inject/bad name/x", {}),
    ],
)
def test_variables_in_paths(path: str, expected: Mapping[str, str]) -> None:
    assert variables_of(path) == expected


REFUSED: Mapping[str, tuple[str, str]] = {
    "sidecar.istio.io/interceptionMode": ("SOMETIMES", "is not one of REDIRECT, TPROXY, NONE"),
    "status.sidecar.istio.io/port": ("70000", "is not a port"),
    "readiness.status.sidecar.istio.io/periodSeconds": ("-1", "is not a whole number"),
    "traffic.sidecar.istio.io/includeOutboundIPRanges": ("10.0.0.0", "is not a range, such as 10.0.0.0/8"),
    "traffic.sidecar.istio.io/excludeOutboundIPRanges": ("*", "is not a range"),
    "traffic.sidecar.istio.io/includeInboundPorts": ("80,http", '"http" is not a port'),
    "traffic.sidecar.istio.io/excludeOutboundPorts": ("*", "is not a port"),
    "traffic.sidecar.istio.io/excludeInterfaces": ("a b", "is not a list of network interfaces"),
    "sidecar.istio.io/proxyMemory": ("12 GB", "is not a quantity"),
    "sidecar.istio.io/logLevel": ("loud", "is not one of trace, debug"),
    "sidecar.istio.io/componentLogLevel": ("misc", "is not NAME:LEVEL,..."),
    "sidecar.istio.io/userVolume": ("[", "is not JSON"),
    "sidecar.istio.io/userVolumeMount": ('"a"', "is not of the form"),
    "proxy.istio.io/config": ("concurrency: many", "is not a ProxyConfig: concurrency"),
    "prometheus.istio.io/merge-metrics": ("maybe", "is neither true nor false"),
    "inject.istio.io/templates": ("own", "there is no template 'own'; known: gateway, sidecar"),
}


# A reader without a bound of its own runs out of stack, and the process with it.
_DEEP = '[{"name": "a", "x": ' + "[" * 900 + "]" * 900 + "}]"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("proxy.istio.io/config", "[" * 200_000, "has more than 16384 characters"),
        ("proxy.istio.io/config", "[" * 16_000, "nested too deeply"),
        ("proxy.istio.io/config", "- a", "is not a ProxyConfig: expected an object"),
        ("proxy.istio.io/config", "a: 1\n---\nb: 2", "expected one document, got 2"),
        ("sidecar.istio.io/userVolume", _DEEP, "nested too deeply"),
    ],
)
def test_hostile_annotations_cost_their_pod_alone(name: str, value: str, reason: str) -> None:
    with pytest.raises(InjectionError, match=reason) as caught:
        injected(pod(annotations={name: value}))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", REFUSED)
def test_annotations_that_are_refused(name: str) -> None:
    value, reason = REFUSED[name]
    with pytest.raises(InjectionError) as caught:
        injected(pod(annotations={name: value}))
    assert reason in str(caught.value)
    assert name in str(caught.value) or "template" in name
    assert "\n" not in str(caught.value)


def test_annotations_without_effect_are_warnings(tmp_path: Path) -> None:
    (warning,) = injected(pod(annotations={"sidecar.istio.io/enableCoreDump": "true"})).warnings
    assert "sidecar.istio.io/enableCoreDump has no effect" in warning
    found = injected(pod(annotations={"sidecar.istio.io/agentLogLevel": "default:debug,xdsproxy:info"})).pod
    assert "--log-level=debug,xdsproxy:info" in container(found)["args"], "our agent has the like of that scope"
    agent_settings_of(found, tmp_path)


CUSTOM = b"""
defaultTemplates: [sidecar, custom]
aliases: {both: [sidecar, custom]}
injectedAnnotations: {by: us}
neverInjectSelector: [{matchExpressions: [{key: job-name, operator: In, values: [a]}]}]
values: {global: {proxy: {logLevel: info, resources: {limits: null}}}}
templates:
  custom: |
    metadata:
      annotations: {of: {{ workload.kind | json }}}
    spec:
      containers:
      - name: {{ containers[0] | json }}
        env: [{name: REVISION, value: {{ revision | json }}}]
      - name: more
        image: {{ annotation("more", "default:1") | json }}
"""


def test_settings_of_a_file() -> None:
    settings = read_settings(CUSTOM, SETTINGS)
    by = Injector.of(settings)
    assert not injected(pod(labels={"job-name": "a"}), by=by).is_injected
    for name in ("both", "sidecar, custom"):
        found = injected(pod(annotations={"inject.istio.io/templates": name, "more": 'x"\ny: z'}), by=by).pod
        assert names(found, "containers") == ["web", "more"]
        assert container(found, "more")["image"] == 'x"\ny: z', "no annotation becomes YAML"
        assert container(found, "web")["env"] == [{"name": "REVISION", "value": ""}]
        assert found["metadata"]["annotations"].items() >= {"of": "Deployment", "by": "us"}.items()
        assert "--envoy-log-level=info" in container(found)["args"]
        assert container(found)["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}}
        again = injected(found, by=by).pod
        assert list(difference(found, again)) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "is not an object with settings"),
        ("a: [", "not valid YAML"),
        ('policy: !!int ""', "'' can't be read as"),
        ("policy: !!bool x", "'x' can't be read as"),
        ("policy: " + "[" * 5000, "nested too deeply"),
        ("\udcff", "utf-8"),
        ("polici: enabled", "polici: there is no such field"),
        ("policy: sometimes", "policy: 'sometimes' is neither enabled nor disabled"),
        ("neverInjectSelector: {a: b}", "neverInjectSelector: expected a list"),
        ("alwaysInjectSelector: [{matchLabel: {a: b}}]", "alwaysInjectSelector[0].matchLabel: a label selector has"),
        ("alwaysInjectSelector: [{matchExpressions: [{key: a, operator: Is}]}]", "[0].operator: 'Is' is not one of"),
        ("values: {global: 3}", "values.global: expected an object"),
        ("values: {global: {logging: {level: [info]}}}", "values.global.logging.level: expected a string"),
        ("values: {global: {proxy: {privileged: 3}}}", "values.global.proxy.privileged: expected true or false"),
        ("values: {global: {proxy: {readinessPeriodSeconds: no}}}", "readinessPeriodSeconds: expected a whole number"),
        ("values: {global: {imagePullSecrets: registry}}", "values.global.imagePullSecrets: expected a list"),
        ("templates: {a: 3}", "templates.a: expected a string"),
        ("nativeSidecars: 3", "nativeSidecars: expected true or false"),
        ("defaultTemplates: [x]", "defaultTemplates: there is no template 'x'"),
        ("aliases: {both: [sidecar, x]}", "aliases.both: there is no template 'x'"),
        ("templates: {a: '{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}'}", "template a: nested too deeply"),
        ("templates: {a: '{% if %}'}", "template a, line 1"),
    ],
)
def test_settings_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises((InjectionSettingsError, InjectionTemplateError)) as caught:
        Injector.of(read_settings(text.encode(errors="surrogateescape"), SETTINGS))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("a: {{ nothing }}", "template own, line 1: 'nothing' is undefined"),
        ("- a", "makes no object"),
        ("a: [", "template own makes no object with the parts of a Pod: not valid YAML"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% for i in range(100000) %}{{ 'x' * 100 }}{% endfor %}", "makes more than"),
        ("{{ pod.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_templates_that_fail_cost_the_pod_that_they_are_for(template: str, reason: str) -> None:
    by = Injector.of(InjectionSettings(templates={"own": template}, values=SETTINGS.values))
    with pytest.raises(InjectionError) as caught:
        injected(pod(annotations={"inject.istio.io/templates": "own"}), by=by)
    assert reason in str(caught.value)
    assert injected(pod(), by=by).is_injected


def test_no_image_is_a_reason() -> None:
    with pytest.raises(InjectionError, match="--injection-image"):
        injected(pod(), by=injector(InjectionSettings()))


_TEXTS = st.text(alphabet='ab"{}[]:,#\n\\&*!|>%@` é', max_size=8)
_PROBES = st.fixed_dictionaries(
    {},
    optional={
        "readinessProbe": st.just({"httpGet": {"path": "/", "port": 80}}),
        "livenessProbe": st.just({"tcpSocket": {"port": "http"}}),
        "env": st.lists(st.fixed_dictionaries({"name": _TEXTS, "value": _TEXTS}), max_size=2),
        "volumeMounts": st.lists(st.fixed_dictionaries({"name": _TEXTS, "mountPath": _TEXTS}), max_size=2),
    },
)
_NAMES = st.sampled_from(("a", "b", "istio-proxy"))
_CONTAINERS = st.lists(
    st.builds(lambda name, more: {"name": name, "image": "x", **more}, _NAMES, _PROBES),
    min_size=1,
    max_size=3,
    unique_by=lambda container: str(container["name"]),
)
_PODS = st.builds(
    lambda containers, annotations, spec: pod(containers=containers, annotations=annotations, **spec),
    _CONTAINERS,
    st.fixed_dictionaries(
        {},
        optional={
            "sidecar.istio.io/nativeSidecar": st.sampled_from(("true", "false")),
            "prometheus.io/port": st.just("9102"),
            "proxy.istio.io/config": st.just("holdApplicationUntilProxyStarts: true"),
            "sidecar.istio.io/bootstrapOverride": _TEXTS,
            "sidecar.istio.io/proxyImage": st.builds("x/{}".format, _TEXTS),
            "sidecar.istio.io/interceptionMode": st.sampled_from(("REDIRECT", "TPROXY", "NONE")),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "volumes": st.just([{"name": "own", "emptyDir": {}}]),
            "initContainers": st.just([{"name": "setup", "image": "x"}]),
            "imagePullSecrets": st.just([{"name": "own"}]),
        },
    ),
)


def patched(value: Any, patch: list[dict[str, Any]]) -> Any:
    """What RFC 6902 makes of a value."""
    found = json.loads(json.dumps(value))
    for step in json.loads(json.dumps(patch)):
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at = found
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list) and step["op"] == "add":
            at.insert(len(at) if last == "-" else int(last), step["value"])
        elif step["op"] == "remove":
            at.pop(int(last) if isinstance(at, list) else last)
        else:
            assert step["op"] == "add" or isinstance(at, list) or last in at
            at[int(last) if isinstance(at, list) else last] = step["value"]
    return found


@settings(max_examples=examples(25))
@given(_PODS)
def test_any_pod_is_injected_once_and_its_patch_leads_there(found: dict[str, Any]) -> None:
    once = injected(found).pod
    patch = list(difference(found, once))
    assert patched(found, patch) == once
    assert list(difference(once, injected(once).pod)) == [], "injected twice is as injected once"
    for name in ("containers", "initContainers"):
        own = [each for each in names(found, name) if each != "istio-proxy"]
        assert [each for each in names(once, name) if each in own] == own, "their order stays"


_KEYS = st.sampled_from(("a", "b/c", "~", "name"))
_LEAVES = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(("a", "~/b"))
_JSON: st.SearchStrategy[Any] = st.deferred(
    lambda: _LEAVES | st.lists(_JSON, max_size=3) | st.dictionaries(_KEYS, _JSON, max_size=3)
)


@given(st.dictionaries(st.sampled_from("abc"), _JSON), st.dictionaries(st.sampled_from("abc"), _JSON))
def test_a_json_patch_leads_from_one_value_to_the_other(before: Any, after: Any) -> None:
    patch = list(difference(before, after))
    assert json.dumps(patched(before, patch), sort_keys=True) == json.dumps(after, sort_keys=True)
    assert bool(patch) is (json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True))


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": None, "c": 3}, {"b": 2, "c": 3}),
        ({"args": ["a", "b"]}, {"args": ["c"]}, {"args": ["c"]}),
        ({"env": [{"name": "a", "value": "1"}]}, {"env": [{"name": "b"}, {"name": "a", "value": "2"}]},
         {"env": [{"name": "a", "value": "2"}, {"name": "b"}]}),
        ({"env": [{"name": "a"}, {"name": "b"}]}, {"env": [{"name": "a", "$patch": "delete"}]},
         {"env": [{"name": "b"}]}),
        ({"env": [{"name": "a"}]}, {"env": [{"name": "b"}, {"$patch": "replace"}]}, {"env": [{"name": "b"}]}),
        ({"x": {"a": 1}}, {"x": {"$patch": "replace", "b": 2}}, {"x": {"b": 2}}),
        ({"volumes": [{"name": "a", "secret": {}}]}, {"volumes": [{"name": "a", "emptyDir": {}}]},
         {"volumes": [{"name": "a", "emptyDir": {}}]}),
    ],
)  # fmt: skip
def test_strategic_merge(base: Any, over: Any, expected: Any) -> None:
    assert overlaid(base, over) == expected
