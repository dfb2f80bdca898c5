"""Webhooks asked by a real API server: what it refuses, what it changes, and the bundle by which it trusts us."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.cli.discovery.connection_flags import injection_settings
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.apiserver import load_access
from mesh_pilot.kubernetes.webhooks.injection.inject import difference
from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings
from tests.support.apiserver import ApiServer
from tests.support.envoy import eventually
from tests.support.planes import running_plane
from tests.webhooks.agent_of_pod import agent_settings_of
from tests.webhooks.test_inject_command import SAMPLE
from tools.gen_crds import definitions

pytestmark = [pytest.mark.slow, pytest.mark.process]

ADMISSION = "admissionregistration.k8s.io/v1"
CONFIGURATIONS = f"/apis/{ADMISSION}"


def webhook(name: str, url: str, group: str, resources: list[str], **more: Any) -> Mapping[str, Any]:
    return {
        "name": name,
        "clientConfig": {"url": url},
        "rules": [
            {"operations": ["CREATE", "UPDATE"], "apiGroups": [group], "apiVersions": ["*"], "resources": resources}
        ],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        **more,
    }


def configurations(address: str, namespace: str) -> list[dict[str, Any]]:
    """A configuration of each kind, for one namespace of a test."""
    ours = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    metadata = {"name": f"istio-{namespace}", "labels": {"istio.io/rev": namespace}}
    injector = webhook("rev.namespace.sidecar-injector.istio.io", f"https://{address}/inject", "", ["pods"], **ours)
    foreign = webhook("another.example.com", "https://127.0.0.1:9/", "no.such.group", ["things"])
    validator = webhook("rev.validation.istio.io", f"https://{address}/validate", "networking.istio.io", ["*"], **ours)
    common = {"apiVersion": ADMISSION, "metadata": metadata}
    injecting = [foreign, {**injector, "failurePolicy": "Fail"}]
    return [
        {**common, "kind": "MutatingWebhookConfiguration", "webhooks": injecting},
        {**common, "kind": "ValidatingWebhookConfiguration", "webhooks": [validator]},
    ]


@asynccontextmanager
async def asked_plane(apiserver: ApiServer, folder: Path, namespace: str) -> AsyncIterator[ControlPlane]:
    """A control plane that the API server asks about objects of a namespace; its revision has the same name."""
    webhooks = WebhookSettings(
        address="127.0.0.1:0",
        revision=namespace,
        injection=injection_settings("registry.example/mesh-pilot:1", namespace, namespace),
        access=load_access(apiserver.kubeconfig()),
    )
    async with running_plane(folder, webhooks=webhooks, namespace=namespace) as plane:
        await apiserver.apply(*configurations(plane.addresses.webhooks, namespace))
        try:
            yield plane
        finally:
            for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
                await apiserver.ask("DELETE", f"{CONFIGURATIONS}/{plural}/istio-{namespace}")


async def bundle(apiserver: ApiServer, plural: str, name: str, index: int = -1) -> bytes:
    found = await apiserver.ask("GET", f"{CONFIGURATIONS}/{plural}/{name}")
    return base64.b64decode(found["webhooks"][index]["clientConfig"].get("caBundle", ""))


async def policy(apiserver: ApiServer, name: str) -> str:
    found = await apiserver.ask("GET", f"{CONFIGURATIONS}/validatingwebhookconfigurations/{name}")
    return str(found["webhooks"][0]["failurePolicy"])


def virtual_service(weight: int) -> Mapping[str, Any]:
    return {"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}, "weight": weight}]}]}


async def test_an_api_server_asks_trusts_and_is_answered(apiserver: ApiServer, tmp_path: Path) -> None:
    await apiserver.install(definitions([KINDS["VirtualService"], KINDS["Gateway"]]))
    async with apiserver.namespace() as namespace, asked_plane(apiserver, tmp_path, namespace.name) as plane:
        roots = b"".join(plane.state.trust.own().roots)
        name = f"istio-{namespace.name}"

        async def is_kept() -> bool:
            plurals = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
            return all([await bundle(apiserver, plural, name) == roots for plural in plurals])

        async def is_closed() -> bool:
            return await policy(apiserver, name) == "Fail"

        await eventually(is_kept)
        assert await bundle(apiserver, "mutatingwebhookconfigurations", name, 0) == b"", "another's is left alone"
        await eventually(is_closed)

        # An object that is wrong is refused with the rules for files, in a dry run as well.
        bad = namespace.object("networking.istio.io/v1", "VirtualService", "bad", spec=virtual_service(-1))
        path = f"/apis/networking.istio.io/v1/namespaces/{namespace.name}/virtualservices"
        for query in ({}, {"dryRun": "All"}):
            reply = await apiserver.request("POST", path, bad, **query)
            assert reply.status_code == 422
            text = reply.json()["message"]
            assert f"VirtualService {namespace.name}/bad: spec.http[0].route[0].weight" in text
        # A good one is written, and its warnings reach who writes it.
        good = {"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}}], "mirrorPercent": 5}]}
        reply = await apiserver.request("POST", path, {**bad, "spec": good})
        assert reply.status_code == 201
        assert "mirrorPercent" in reply.headers["warning"]
        await apiserver.ask("DELETE", f"{path}/bad")

        # A Pod comes out with a sidecar, and its agent would run with what it gets.
        web = {"name": "web", "image": "web", "ports": [{"containerPort": 80, "name": "http"}]}
        pod = namespace.object(
            "v1",
            "Pod",
            "web-1",
            labels={"app": "web"},
            annotations={"sidecar.istio.io/logLevel": "debug"},
            spec={
                "serviceAccountName": "web",
                "containers": [{**web, "readinessProbe": {"httpGet": {"path": "/up", "port": "http"}}}],
            },
        )
        created = await apiserver.ask("POST", f"/api/v1/namespaces/{namespace.name}/pods", pod)
        assert [c["name"] for c in created["spec"]["initContainers"]] == ["istio-init", "istio-proxy"]
        settings = agent_settings_of(created, tmp_path)
        assert settings.node.labels["app"] == "web"
        assert settings.node.namespace == namespace.name
        assert settings.envoy.log_level == "debug"
        refused = {**pod, "metadata": {**pod["metadata"], "name": "web-2"}}
        refused["metadata"]["annotations"] = {"sidecar.istio.io/proxyCPU": "much"}
        reply = await apiserver.request("POST", f"/api/v1/namespaces/{namespace.name}/pods", refused)
        assert reply.status_code == 422
        assert 'annotation sidecar.istio.io/proxyCPU: "much" is not a quantity' in reply.json()["message"]

        # Roots are in every namespace, and what somebody changes is put back.
        async def has_roots() -> bool:
            path = f"/api/v1/namespaces/{namespace.name}/configmaps/istio-ca-root-cert"
            reply = await apiserver.request("GET", path)
            return bool(reply.is_success and reply.json()["data"]["root-cert.pem"].encode() == roots)

        await eventually(has_roots)
        found = await apiserver.ask("GET", f"{CONFIGURATIONS}/validatingwebhookconfigurations/{name}")
        found["webhooks"][0]["clientConfig"]["caBundle"] = ""
        found["webhooks"][0]["failurePolicy"] = "Ignore"
        await apiserver.ask("PUT", f"{CONFIGURATIONS}/validatingwebhookconfigurations/{name}", found)
        await apiserver.ask("DELETE", f"/api/v1/namespaces/{namespace.name}/configmaps/istio-ca-root-cert")
        with trio.fail_after(30):
            await eventually(is_kept)
            await eventually(is_closed)
            await eventually(has_roots)


PODS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "next to the containers": {"annotations": {"sidecar.istio.io/nativeSidecar": "false"}},
    "held": {
        "annotations": {
            "sidecar.istio.io/nativeSidecar": "false",
            "proxy.istio.io/config": "{holdApplicationUntilProxyStarts: true, proxyMetadata: {A: b}}",
        }
    },
    "tproxy": {"annotations": {"sidecar.istio.io/interceptionMode": "TPROXY"}},
    "no rules": {"annotations": {"sidecar.istio.io/interceptionMode": "NONE", "status.sidecar.istio.io/port": "0"}},
    "volumes": {
        "annotations": {
            "sidecar.istio.io/userVolume": '{"certs": {"secret": {"secretName": "certs"}}}',
            "sidecar.istio.io/userVolumeMount": '{"certs": {"mountPath": "/certs", "readOnly": true}}',
            "sidecar.istio.io/bootstrapOverride": "bootstrap",
        },
        "volumes": [{"name": "own", "emptyDir": {}}],
    },
    "traffic": {
        "annotations": {
            "traffic.sidecar.istio.io/excludeInboundPorts": "1,2",
            "traffic.sidecar.istio.io/excludeInterfaces": "eth1",
            "sidecar.istio.io/capNetBindService": "true",
            "sidecar.istio.io/proxyCPU": "10m",
        }
    },
    "probes": {
        "containers": [
            {
                "name": "web",
                "image": "web",
                "livenessProbe": {"tcpSocket": {"port": 80}},
                "startupProbe": {"grpc": {"port": 90}},
                "lifecycle": {"preStop": {"httpGet": {"path": "/", "port": 80}}},
            }
        ]
    },
    "described by the user": {
        "containers": [
            {"name": "web", "image": "web"},
            {"name": "istio-proxy", "image": "auto", "securityContext": {"runAsUser": 1234}, "tty": True},
        ]
    },
    "gateway": {
        "annotations": {"inject.istio.io/templates": "gateway"},
        "containers": [{"name": "istio-proxy", "image": "auto"}],
    },
}


async def test_injected_pods_of_all_kinds_are_pods_and_so_is_the_sample(apiserver: ApiServer, tmp_path: Path) -> None:
    async with apiserver.namespace() as namespace, asked_plane(apiserver, tmp_path, namespace.name) as plane:
        roots = b"".join(plane.state.trust.own().roots)

        async def is_kept() -> bool:
            return await bundle(apiserver, "mutatingwebhookconfigurations", f"istio-{namespace.name}") == roots

        await eventually(is_kept)
        path = f"/api/v1/namespaces/{namespace.name}/pods"
        for index, (case, more) in enumerate(PODS.items()):
            annotations, spec = more.get("annotations", {}), {k: v for k, v in more.items() if k != "annotations"}
            found = {"serviceAccountName": "web", "containers": [{"name": "web", "image": "web"}], **spec}
            pod = namespace.object("v1", "Pod", f"pod-{index}", annotations=annotations, spec=found)
            reply = await apiserver.request("POST", path, pod)
            assert reply.status_code == 201, f"{case}: {reply.text}"
            created = reply.json()
            assert "sidecar.istio.io/status" in created["metadata"]["annotations"], case
            agent_settings_of(created, tmp_path)
            # As it came out, it goes in again: nothing is added.
            again = {**created, "metadata": {**created["metadata"]}}
            for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
                again["metadata"].pop(field, None)
            await apiserver.ask("DELETE", f"{path}/pod-{index}")
            same = await apiserver.ask("POST", path, again)
            assert list(difference(created["spec"], same["spec"])) == [], case
            assert list(difference(created["metadata"]["annotations"], same["metadata"]["annotations"])) == [], case
    for configuration in yaml.safe_load_all(SAMPLE.read_text(encoding="utf-8")):
        plural = f"{configuration['kind']}s".lower()
        reply = await apiserver.request("POST", f"{CONFIGURATIONS}/{plural}", configuration, dryRun="All")
        assert reply.status_code == 201, reply.text
