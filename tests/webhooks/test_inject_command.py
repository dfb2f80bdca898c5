"""``mesh-pilot inject``, what the agent reads of its Pod, and ``mesh-pilot proxy wait``."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import attrs
import pytest
import yaml
from click import ClickException, UsageError
from click.testing import CliRunner, Result

from mesh_pilot.app.identity import webhook_names
from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.change.inject import command as inject
from mesh_pilot.cli.discovery.command import command as discovery
from mesh_pilot.cli.discovery.command import webhooks_of
from mesh_pilot.cli.proxy import command as proxy
from mesh_pilot.cli.proxy import pod_info
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.kubernetes.webhooks.admission import read_review
from mesh_pilot.kubernetes.webhooks.ca_bundles import INJECTOR
from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings
from mesh_pilot.model.config import Origin
from mesh_pilot.model.flags import built
from tests.webhooks.agent_of_pod import agent_settings_of
from tests.webhooks.pods import container, names

SAMPLES = Path(__file__).parents[2] / "samples" / "kubernetes"
SAMPLE = SAMPLES / "webhooks.yaml"
IMAGE = ("--injection-image", "registry.example/mesh-pilot:1")

MANIFESTS = """\
apiVersion: v1
kind: Service
metadata: {name: web, creationTimestamp: 2024-01-01T00:00:00Z}
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  template: &template
    metadata: {labels: {app: web}}
    spec:
      containers:
      - &web
        name: web
        image: web
        readinessProbe: &probe {httpGet: {path: /up, port: 8080}}
      - {<<: *web, name: second}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: b}]}}}}}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: host}
  spec: {hostNetwork: true, containers: [{name: a, image: b}]}
"""


def run(text: str, *flags: str) -> Result:
    return CliRunner().invoke(inject, ["-f", "-", *flags], input=text, standalone_mode=False)


def test_manifests_with_pods_get_sidecars_and_the_others_stay(tmp_path: Path) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text("trustDomain: td\ndefaultConfig: {discoveryAddress: 'plane:15012'}")
    result = run(MANIFESTS, *IMAGE, "--mesh-config", str(mesh), "--cluster-id", "eu-1", "-n", "jobs")
    assert result.exception is None, result.exception
    assert result.stderr == "mesh-pilot: Pod jobs/host: no sidecar: it uses the host's network\n"
    service, deployment, cron_job, found = yaml.load_all(result.stdout, yaml.BaseLoader)
    assert service["metadata"]["creationTimestamp"] == "2024-01-01T00:00:00Z"
    assert deployment["spec"]["replicas"] == "2"
    template = deployment["spec"]["template"]
    assert names(template, "initContainers") == ["istio-init", "istio-proxy"]
    paths = [container(template, name)["readinessProbe"]["httpGet"]["path"] for name in ("web", "second")]
    assert paths == ["/app-health/web/readyz", "/app-health/second/readyz"], "each its own, where YAML shares them"
    agent = agent_settings_of(template, tmp_path)
    assert agent.node.metadata["OWNER"] == "kubernetes://apis/apps/v1/namespaces/shop/deployments/web"
    assert agent.node.metadata["MESH_ID"] == "td"
    assert [str(pilot.address) for pilot in agent.planes.addresses] == ["plane:15012"]
    assert "istio-proxy" in names(cron_job["spec"]["jobTemplate"]["spec"]["template"], "initContainers")
    assert "initContainers" not in found["items"][0]["spec"]
    again = run(result.stdout, *IMAGE, "--mesh-config", str(mesh), "--cluster-id", "eu-1", "-n", "jobs")
    assert list(yaml.safe_load_all(again.stdout)) == list(yaml.safe_load_all(result.stdout))


def test_values_are_those_that_kubernetes_reads() -> None:
    texts = ["1234e56", "0x1F", "0o17", "yes", "~", "1:30", "8080:15", "=", "a\nb\n", "\u00e9", "1" * 500]
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "data": {str(n): text for n, text in enumerate(texts)}}
    numbers = "numbers: [8080:15, 0777, 1e3, 1_000, no]\n"
    result = run(f"{json.dumps(manifest)}\n---\nkind: Numbers\n{numbers}", *IMAGE)
    assert result.exception is None, result.exception
    found = [document.data for document in load(result.stdout, Origin("test")) if isinstance(document, Document)]
    assert found == [manifest, {"kind": "Numbers", "numbers": ["8080:15", 0o777, 1000.0, 1000, False]}]


@pytest.mark.parametrize(
    ("text", "flags", "reason"),
    [
        ("metadata: [a]\nkind: Pod\napiVersion: v1", IMAGE, "metadata of a Pod is not an object"),
        ("a: !!bool x", IMAGE, "these are not manifests: line 1: 'x' can't be read"),
        ("a: " + "[" * 5000, IMAGE, "these are not manifests: nested too deeply"),
        ("spec: {template: {spec: {containers: [3]}}}", IMAGE, "this is not a Pod"),
        (MANIFESTS, (), "Deployment shop/web: no image is set for the proxy: give --injection-image"),
        ("a: [", IMAGE, "these are not manifests"),
        ("- a", IMAGE, "expected objects, and found list"),
        (MANIFESTS.replace("{app: web}", "3"), IMAGE, "Deployment shop/web: this is not a Pod"),
        (MANIFESTS, (*IMAGE, "--mesh-config", "/nowhere"), "--mesh-config: [Errno 2]"),
        (MANIFESTS, (*IMAGE, "--injection-template", "/nowhere"), "--injection-template: [Errno 2]"),
    ],
)
def test_nothing_is_written_where_something_is_wrong(text: str, flags: tuple[str, ...], reason: str) -> None:
    result = run(text, *flags)
    assert isinstance(result.exception, ClickException), result.exception
    assert reason in result.exception.message
    assert "\n" not in result.exception.message
    assert result.stdout == ""


def test_files_of_the_downward_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_info, "FOLDER", tmp_path)
    assert pod_info.pod_labels() == {}
    (tmp_path / "annotations").write_text(
        'a/b="plain"\nproxy.istio.io/config="concurrency: 2\\nx: \\"é\\" \\u20ac \\\\"\nempty=""\nno line of it\n',
        "utf-8",
    )
    assert pod_info.pod_annotations() == {
        "a/b": "plain", "proxy.istio.io/config": 'concurrency: 2\nx: "é" € \\', "empty": "",
    }  # fmt: skip


class _Ready(BaseHTTPRequestHandler):
    answers: list[int]

    def do_GET(self) -> None:
        self.send_response(self.answers.pop() if len(self.answers) > 1 else self.answers[0])
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(("answers", "is_ready"), [([200, 503, 503], True), ([503], False)])
def test_waiting_for_the_proxy(answers: list[int], is_ready: bool) -> None:
    handler = type("Handler", (_Ready,), {"answers": answers})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        flags = ["--url", f"http://127.0.0.1:{server.server_port}/", "--period", "10ms", "--timeout", "200ms"]
        result = CliRunner().invoke(proxy, ["wait", *flags], standalone_mode=False)
        server.shutdown()
        thread.join()
    if is_ready:
        assert result.exception is None
    else:
        assert isinstance(result.exception, ClickException)
        assert "the proxy is not ready after 0.2 s: HTTP Error 503" in result.exception.message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), None),
        (("--kubeconfig", "K"), "https://one"),
        (("--kubeconfig", "K", "--context", "two"), "https://two"),
        (("--kubernetes-kubeconfig", "K"), "https://one"),
    ],
)
def test_the_api_server_is_the_one_that_is_read(
    flags: tuple[str, ...], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    named = [{"name": name, "cluster": {"server": f"https://{name}"}} for name in ("one", "two")]
    contexts = [{"name": name, "context": {"cluster": name, "user": "me"}} for name in ("one", "two")]
    users = [{"name": "me", "user": {"token": "t"}}]
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({"clusters": named, "contexts": contexts, "users": users, "current-context": "one"}))
    given = [str(path) if flag == "K" else flag for flag in flags]
    context = discovery.make_context("discovery", ["--https-addr", ":15017", *given])
    mesh = built(Settings, context.params)
    found = webhooks_of(context.params, mesh, {"REVISION": "canary"})
    assert found is not None
    assert (found.access.server if found.access else None) == expected
    assert (found.address, found.revision) == (":15017", "canary")
    assert found.injection.values["global"]["multiCluster"]["clusterName"] == context.params["cluster_id"]
    with pytest.raises(UsageError, match="--injection-image needs --https-addr"):
        webhooks_of({**context.params, "https_addr": None, "injection_image": "a/b"}, mesh, {})


def test_the_sample_has_the_paths_and_names_that_are_served_and_kept() -> None:
    validating, mutating = yaml.safe_load_all(SAMPLE.read_text(encoding="utf-8"))
    objects = list(yaml.safe_load_all((SAMPLES / "mesh-pilot.yaml").read_text(encoding="utf-8")))
    service = next(found for found in objects if found["kind"] == "Service")
    ports = {port["port"]: port["targetPort"] for port in service["spec"]["ports"]}
    settings = attrs.evolve(Settings(), webhooks=WebhookSettings(address=":15017"), namespace="istio-system")
    assert {webhook["clientConfig"]["service"]["path"] for webhook in validating["webhooks"]} == {"/validate"}
    assert {webhook["clientConfig"]["service"]["path"] for webhook in mutating["webhooks"]} == {"/inject"}
    assert all(webhook["name"].endswith(INJECTOR) for webhook in mutating["webhooks"])
    for configuration in (validating, mutating):
        assert configuration["metadata"]["labels"]["istio.io/rev"] == "default"
        for webhook in configuration["webhooks"]:
            asked = webhook["clientConfig"]["service"]
            assert (asked["name"], asked["namespace"]) == ("mesh-pilot", service["metadata"]["namespace"])
            assert (asked["name"], ports[asked["port"]]) == (service["metadata"]["name"], "https-webhook")
            assert f"{asked['name']}.{asked['namespace']}.svc" in webhook_names(settings), "names in the certificate"
            for version in webhook["admissionReviewVersions"]:
                body = f'{{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/{version}", "request": {{}}}}'
                assert read_review(body.encode()).api_version.endswith(version)


def test_the_samples_state_is_in_a_folder_of_its_own() -> None:
    """A volume belongs to root and is open to fsGroup: no place for private keys, so the state would not be kept."""
    objects = yaml.safe_load_all((SAMPLES / "mesh-pilot.yaml").read_text(encoding="utf-8"))
    spec = next(found for found in objects if found["kind"] == "Deployment")["spec"]["template"]["spec"]
    (own,) = spec["containers"]
    (state,) = (Path(each.partition("=")[2]) for each in own["args"] if each.startswith("--state-dir="))
    mounts = {Path(mount["mountPath"]): mount["name"] for mount in own["volumeMounts"]}
    assert state not in mounts
    assert mounts[state.parent] == "state"
