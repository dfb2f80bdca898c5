"""samples/kubernetes as it stands: a Pod that is made is injected, and its agent reaches the control plane.

The agent is started with exactly what the webhook has put into the Pod, and uses the name that the sample gives it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.apiserver import Object
from tests.support.envoy import eventually
from tests.support.kubernetes_sample import Cluster, answers, cluster
from tests.webhooks.agent_of_pod import POD_IP, container_of, environment_of

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.envoy, pytest.mark.timeout(300)]


async def injected(made: Cluster, namespace: str) -> Object:
    """A Pod that the webhook has changed, made as soon as the API server trusts it."""
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": namespace, "labels": {"app": "web"}},
        "spec": {"serviceAccountName": "web", "containers": [{"name": "web", "image": "web"}]},
    }
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/mesh-pilot-sidecar-injector"

    async def trusts() -> bool:
        found = await made.server.ask("GET", path)
        return all(base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in found["webhooks"])

    with trio.fail_after(60):
        await eventually(trusts, what="the bundle of the webhooks is filled in")
    return await made.server.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


async def roots_of(made: Cluster, namespace: str) -> str:
    """The roots that the leader writes to each namespace."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/istio-ca-root-cert"
    found: list[str] = []

    async def there() -> bool:
        reply = await made.server.request("GET", path)
        found[:] = [reply.json()["data"]["root-cert.pem"]] if reply.is_success else []
        return bool(found)

    with trio.fail_after(60):
        await eventually(there, what="the roots are in the namespace")
    return found[0]


async def test_an_injected_agent_reaches_the_control_plane_by_the_name_that_the_sample_gives_it(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made, made.server.namespace("shop", labels={"istio-injection": "enabled"}):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "web", "namespace": "shop"}}
        await made.server.apply(account)
        pod = await injected(made, "shop")
        sidecar: Mapping[str, Any] = container_of(pod, "istio-proxy")
        arguments, variables = sidecar["args"], environment_of(pod)
        assert made.discovery in " ".join([*arguments, *variables.values()])
        files = tmp_path / "files"
        for name in ("istio", "tokens", "pod", "data", "run"):
            (files / name).mkdir(parents=True)
        (files / "istio" / "root-cert.pem").write_text(await roots_of(made, "shop"))
        token = await made.server.account_token("shop", "web", audiences=["istio-ca"])
        (files / "tokens" / "istio-token").write_text(token)
        (files / "pod" / "labels").write_text('app="web"\n')
        (files / "pod" / "annotations").write_text("")
        places = {
            "/var/run/secrets/istio": files / "istio",
            "/var/run/secrets/tokens": files / "tokens",
            "/etc/istio/pod": files / "pod",
            "/var/lib/istio/data": files / "data",
            "/etc/istio/proxy": files / "run",
        }
        mounts = {m["mountPath"]: places[m["mountPath"]] for m in sidecar["volumeMounts"] if m["mountPath"] in places}
        log = made.start("agent", arguments, variables, mounts, made.discovery)
        probe = (sidecar.get("readinessProbe") or sidecar["startupProbe"])["httpGet"]
        await answers(f"http://{POD_IP}:{probe['port']}{probe['path']}", log)
        assert "control plane connected" in log.read_text()
