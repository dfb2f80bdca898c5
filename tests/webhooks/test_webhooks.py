"""The webhooks as an API server meets them: reviews and answers, hostile bodies, and what the leader writes there."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource
from mesh_pilot.kubernetes.webhooks.admission import ReviewError, read_review
from mesh_pilot.kubernetes.webhooks.app import MAX_BODY, WebhookApp
from mesh_pilot.kubernetes.webhooks.ca_bundles import MUTATING, VALIDATING, CaBundleWriter
from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettingsError
from mesh_pilot.kubernetes.webhooks.root_certificates import CONFIG_MAPS, NAMESPACES, RootCertificates
from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings
from mesh_pilot.kubernetes.webhooks.sidecars import SidecarSettingsFile
from mesh_pilot.kubernetes.webhooks.validation import validate
from mesh_pilot.replicas.election.base import Term
from tests.support.api_double import IN_MEMORY, ApiDouble
from tests.support.planes import running_plane
from tests.webhooks.pods import MESH, SETTINGS, injector, pod

ROOT = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
NEWER = ROOT.replace(b"AAAA", b"BBBB")
GATEWAYS = ApiResource("networking.istio.io", ("v1",), "gateways", "Gateway")
FOREVER = Term(1, lambda: "")


def review(found: object, operation: str = "CREATE", **more: Any) -> dict[str, Any]:
    data: Mapping[str, Any] = found if isinstance(found, dict) else {}
    metadata = data["metadata"] if isinstance(data.get("metadata"), dict) else {}
    group, _, version = str(data.get("apiVersion", "")).rpartition("/")
    request = {
        "uid": "u-1",
        "operation": operation,
        "namespace": metadata.get("namespace", "shop"),
        "name": metadata.get("name", ""),
        "kind": {"group": group, "version": version, "kind": data.get("kind", "")},
        "resource": {"group": group, "version": version, "resource": f"{data.get('kind', '')}s".lower()},
        "object": found,
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def virtual_service(spec: Mapping[str, Any], version: str = "v1", **metadata: Any) -> dict[str, Any]:
    own = {"name": "reviews", "namespace": "shop", **metadata}
    return {
        "apiVersion": f"networking.istio.io/{version}", "kind": "VirtualService", "metadata": own, "spec": spec,
    }  # fmt: skip


GOOD = {"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}}]}]}
BAD = {"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}, "weight": -1}], "timeout": "soon"}]}


@pytest.mark.parametrize(
    ("found", "operation", "code", "said"),
    [
        (virtual_service(GOOD), "CREATE", 0, ""),
        (virtual_service(GOOD), "UPDATE", 0, ""),
        (virtual_service(GOOD, "v9"), "CREATE", 0, ""),
        (virtual_service(GOOD, name=None, generateName="a-"), "CREATE", 0, ""),
        (None, "DELETE", 0, ""),
        (virtual_service(BAD), "DELETE", 0, ""),
        (virtual_service(BAD, deletionTimestamp="2024-01-01T00:00:00Z", finalizers=[]), "UPDATE", 0, ""),
        (virtual_service(BAD), "CREATE", 422, "VirtualService shop/reviews: spec.http[0]."),
        (virtual_service({**GOOD, "host": "a"}), "CREATE", 422, 'spec.host: unknown field "host"; did you mean hosts?'),
        ({**virtual_service(GOOD), "specs": {}}, "CREATE", 422, "specs: unknown field"),
        ({**virtual_service(GOOD), "kind": "VirtualServise"}, "CREATE", 400, "did you mean VirtualService?"),
        ({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}, "CREATE", 400,
         "the kind is not one of those that are read"),
        ({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
          "metadata": {"name": "a", "namespace": "b"}, "spec": {"rules": [{"matches": [{"path": {"type": "Near"}}]}]}},
         "CREATE", 422, "spec.rules[0].matches[0].path"),
        ("text", "CREATE", 400, "the request has no object"),
        (virtual_service(GOOD, annotations={"internal.istio.io/webhook-always-reject": "true"}), "CREATE", 422,
         "asks for it"),
        ({"apiVersion": 3, "kind": [], "metadata": {}}, "CREATE", 422, "apiVersion: must be a non-empty string"),
        ({**virtual_service(GOOD), "metadata": 3}, "CREATE", 422, "metadata: "),
    ],
)  # fmt: skip
def test_what_is_refused_and_why(found: object, operation: str, code: int, said: str) -> None:
    answer = validate(read_review(json.dumps(review(found, operation)).encode())).answer
    assert (answer.allowed, answer.code) == (not code, code)
    assert said in answer.message
    assert "\n" not in answer.message


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", "not an AdmissionReview"),
        (
            b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v2"}',
            "understood: admission.k8s.io/v1, admission",
        ),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', "has no request"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
    ],
)
def test_bodies_that_are_no_review(body: bytes, reason: str) -> None:
    with pytest.raises(ReviewError, match=reason):
        read_review(body)


@attrs.frozen
class Reply:
    status_code: int
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Asking:
    """Asks an app without a plane, as an API server does."""

    def __init__(self) -> None:
        self.app = WebhookApp(injector, lambda *_: MESH, is_ready=lambda: READY[0])

    async def get(self, path: str) -> Reply:
        return await self.ask("GET", path, b"", "")

    async def post(self, path: str, content: bytes = b"", *, json: object = None, kind: str = "") -> Reply:
        body = dumps(json).encode() if json is not None else content
        return await self.ask("POST", path, body, "application/json" if json is not None else kind)

    async def ask(self, method: str, path: str, body: bytes, kind: str) -> Reply:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [(b"content-type", kind.encode())]}
        await self.app(scope, receive, send)
        return Reply(sent[0]["status"], sent[1]["body"].decode())


@pytest.fixture
def client() -> Asking:
    return Asking()


READY = [True]


async def test_answers_have_the_reviews_version_uid_causes_and_warnings(client: Asking) -> None:
    older = {**review(virtual_service(BAD)), "apiVersion": "admission.k8s.io/v1beta1"}
    answer = (await client.post("/validate", json=older)).json()
    assert (answer["apiVersion"], answer["kind"], answer["response"]["uid"]) == (
        "admission.k8s.io/v1beta1", "AdmissionReview", "u-1",
    )  # fmt: skip
    status = answer["response"]["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert {cause["field"] for cause in status["details"]["causes"]} == {
        "spec.http[0].route[0].weight", "spec.http[0].timeout",
    }  # fmt: skip
    good = virtual_service({**GOOD, "http": [{**GOOD["http"][0], "mirrorPercent": 5}]})  # type: ignore[dict-item]
    response = (await client.post("/validate/istio", json=review(good))).json()["response"]
    assert response["allowed"] is True
    assert "spec.http[0].mirrorPercent: is deprecated" in response["warnings"][0]
    dry = (await client.post("/validate", json=review(virtual_service(BAD), dryRun=True))).json()["response"]
    assert dry["allowed"] is False
    await client.post("/validate", json=review({"apiVersion": "made.up/v1", "kind": "Up", "metadata": {}}))
    counts = client.app.validations()
    ours = ("networking.istio.io", "v1", "virtualservices")
    assert dict(counts.passed) == {ours: 1}
    others = ("(others)",) * 3
    assert dict(counts.failed) == {(*ours, "invalid_resource"): 1, (*others, "unknown_type"): 1}, (
        "no dry run is counted"
    )


async def test_a_pod_gets_a_patch_or_a_reason(client: Asking) -> None:
    response = (await client.post("/inject", json=review(pod()))).json()["response"]
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    patch = json.loads(base64.b64decode(response["patch"]))
    assert {step["op"] for step in patch} == {"add"}
    skipped = (await client.post("/inject", json=review(pod(hostNetwork=True)))).json()["response"]
    assert skipped == {"uid": "u-1", "allowed": True}
    updated = (await client.post("/inject", json=review(pod(), "UPDATE"))).json()["response"]
    assert "patch" not in updated
    refused = review(pod(annotations={"sidecar.istio.io/proxyCPU": "much"}))
    response = (await client.post("/inject", json=refused)).json()["response"]
    assert response["status"]["message"].startswith(
        'Pod shop/(no name yet): annotation sidecar.istio.io/proxyCPU: "much"'
    )
    odd: Any
    for odd in ({"spec": 3}, {"spec": {"containers": [3]}}, {"metadata": [], "spec": {}}, {"metadata": {"labels": 3}}):
        response = (await client.post("/inject", json=review({"kind": "Pod", **odd}))).json()["response"]
        assert response["allowed"] is False or "patch" in response
    counts = client.app.injections()
    assert (counts.requests, counts.success + counts.failure, counts.skip) == (8, 6, 2)


@pytest.mark.parametrize("path", ["/validate", "/inject"])
async def test_requests_that_are_no_reviews_cost_nobody_else(client: Asking, path: str) -> None:
    assert (await client.get(path)).status_code == 405
    assert (await client.post(path, b"a: b", kind="text/yaml")).status_code == 415
    assert (await client.post(path, kind="application/json")).status_code == 400
    reply = await client.post(path, b"{" * 1_000_000, kind="application/json; charset=utf-8")
    assert (reply.status_code, reply.text[:20]) == (400, "the body is not JSON")
    assert (await client.post("/elsewhere")).status_code == 404
    assert (await client.post("/validate", json=review(virtual_service(GOOD)))).json()["response"]["allowed"]


async def test_what_depends_on_the_mesh_waits_for_it(client: Asking) -> None:
    READY[0] = False
    try:
        assert (await client.get("/httpsReady")).status_code == 503
        assert (await client.post("/inject", json=review(pod()))).status_code == 503
        assert (await client.post("/validate", json=review(virtual_service(GOOD)))).status_code == 200
    finally:
        READY[0] = True
    assert (await client.get("/httpsReady")).status_code == 200


async def test_an_internal_error_is_an_answer(client: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("mesh_pilot.kubernetes.webhooks.app.validate", broken)
    monkeypatch.setattr("mesh_pilot.kubernetes.webhooks.app.inject_into", broken)
    with capture_logs() as logs:
        for path, found in (("/validate", virtual_service(GOOD)), ("/inject", pod())):
            response = (await client.post(path, json=review(found))).json()["response"]
            assert (response["allowed"], response["status"]["code"]) == (False, 500)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["internal error in a webhook"] * 2


async def test_the_log_is_bounded_whoever_asks(client: Asking) -> None:
    refused = pod(annotations={"sidecar.istio.io/proxyCPU": "much"})
    with capture_logs() as logs:
        for index in range(300):
            await client.post("/validate", json=review(virtual_service(BAD), name=f"made-up-{index}"))
            await client.post("/inject", json=review(refused, name="one"))
    assert [line["event"] for line in logs].count("sidecar not injected") == 1
    assert 100 < len(logs) < 300


def test_the_file_of_injection_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "injection.yaml"
    with pytest.raises(InjectionSettingsError, match=r"injection\.yaml: No such file"):
        SidecarSettingsFile(SETTINGS, path)
    path.write_text("policy: disabled")
    file = SidecarSettingsFile(SETTINGS, path)
    before = file.injector
    with capture_logs() as logs:
        file.look()
        path.write_text("policy: on")
        file.look()
        file.look()
        assert file.injector is before
        path.write_text("policy: enabled")
        file.look()
        assert file.injector is not before
        path.unlink()
        file.look()
    assert [line["event"] for line in logs] == [
        "settings of injection refused", "settings of injection changed", "settings of injection refused",
    ]  # fmt: skip


# -- what the leader writes


def configuration(of: str, revision: str = "default", **webhook: Any) -> dict[str, Any]:
    own = {"name": "rev.sidecar-injector.istio.io", "clientConfig": {"service": {"name": "istiod"}}, **webhook}
    return {"metadata": {"name": of, "labels": {"istio.io/rev": revision}}, "webhooks": [own]}


def bundle_of(double: ApiDouble, resource: ApiResource, name: str = "ours", index: int = 0) -> bytes:
    found = double.find(resource, name)
    assert found is not None
    return base64.b64decode(found["webhooks"][index]["clientConfig"].get("caBundle", ""))


async def test_bundles_are_kept_whoever_changes_them(autojump_clock: trio.testing.MockClock) -> None:
    double = ApiDouble([VALIDATING, MUTATING, GATEWAYS, NAMESPACES])
    roots = [ROOT]
    keeper = CaBundleWriter(
        lambda: ApiClient(IN_MEMORY, transport=double.transport()),
        lambda: roots[0],
        revision="",
        namespace="istio-system",
    )
    double.put(VALIDATING, configuration("ours", failurePolicy="Ignore"))
    two = configuration("ours")
    two["webhooks"].insert(0, {"name": "of.another", "clientConfig": {"url": "https://x"}})
    double.put(MUTATING, two)
    double.put(MUTATING, configuration("of-another-revision", revision="canary"))
    double.put(MUTATING, configuration("of-another-program", name="other.example.com"))
    denied = "admission webhook denied the request"
    begins = "POST /apis/networking.istio.io/v1/namespaces/istio-system/gateways?dryRun=All"
    double.fail(begins, 500, times=2, message="no endpoints available for service")
    double.fail(begins, 422, times=1, message=denied)

    def policy() -> str:
        found = double.find(VALIDATING, "ours")
        assert found is not None
        return str(found["webhooks"][0]["failurePolicy"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run, FOREVER)
        await double.until(lambda: bundle_of(double, MUTATING, index=1) == ROOT)
        await double.until(lambda: bundle_of(double, VALIDATING) == ROOT)
        await double.until(lambda: policy() == "Fail")
        assert bundle_of(double, MUTATING, index=0) == b"", "the webhook of another is left alone"
        assert bundle_of(double, MUTATING, "of-another-revision") == b""
        assert bundle_of(double, MUTATING, "of-another-program") == b""
        # Somebody changes them: they are put back, without asking again whether the webhook is there.
        asked = len([request for request in double.requests if request.startswith("POST")])
        double.put(VALIDATING, configuration("ours", failurePolicy="Ignore"))
        await double.until(lambda: bundle_of(double, VALIDATING) == ROOT and policy() == "Fail")
        assert len([request for request in double.requests if request.startswith("POST")]) == asked
        # A new root, while the server cannot be written to for a while.
        double.fail("PATCH", 500, times=2, message="etcd is away")
        roots[0] = NEWER
        keeper.roots_changed()
        await double.until(
            lambda: bundle_of(double, VALIDATING) == NEWER and bundle_of(double, MUTATING, index=1) == NEWER
        )
        # A configuration that comes later.
        double.put(MUTATING, configuration("later"))
        await double.until(lambda: bundle_of(double, MUTATING, "later") == NEWER)
        await trio.sleep(600)
        writes = len([request for request in double.requests if request.startswith("PATCH")])
        await trio.sleep(600)
        assert len([request for request in double.requests if request.startswith("PATCH")]) == writes, "nothing to do"
        nursery.cancel_scope.cancel()
    counts = keeper.counts()
    assert counts.failures["ours", "webhook_update_failure"] == 2
    assert counts.failures["of-another-program", "webhook_entry_not_found"] == 2, "once for each root"
    assert counts.retries["ours"] >= 2
    assert counts.validation_updates == 4


async def test_roots_are_in_every_namespace(autojump_clock: trio.testing.MockClock) -> None:
    double = ApiDouble([NAMESPACES, CONFIG_MAPS])
    roots = [ROOT]
    keeper = RootCertificates(
        lambda: ApiClient(IN_MEMORY, transport=double.transport()), lambda: roots[0], name="istio-ca-root-cert"
    )
    for name in ("shop", "kube-system"):
        double.put(NAMESPACES, {"metadata": {"name": name}})

    def text(namespace: str) -> bytes | None:
        found = double.find(CONFIG_MAPS, "istio-ca-root-cert", namespace)
        return None if found is None else str(found["data"]["root-cert.pem"]).encode()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run, FOREVER)
        await double.until(lambda: text("shop") == ROOT)
        double.put(NAMESPACES, {"metadata": {"name": "later"}})
        await double.until(lambda: text("later") == ROOT)
        assert text("kube-system") is None
        double.forbid("configmaps")
        double.remove(CONFIG_MAPS, "istio-ca-root-cert", "shop")
        await trio.sleep(60)
        double.allow("configmaps")
        await double.until(lambda: text("shop") == ROOT)
        roots[0] = NEWER
        keeper.roots_changed()
        await double.until(lambda: text("shop") == NEWER and text("later") == NEWER)
        double.remove(NAMESPACES, "later")
        double.remove(CONFIG_MAPS, "istio-ca-root-cert", "later")
        await trio.sleep(60)
        assert text("later") is None
        nursery.cancel_scope.cancel()
    assert keeper.counts().namespaces == 1


async def test_a_webhook_that_is_not_asked_is_said_once(autojump_clock: trio.testing.MockClock) -> None:
    """With ``failurePolicy: Ignore``, an API server that does not reach it takes everything."""
    double = ApiDouble([VALIDATING, MUTATING, GATEWAYS, NAMESPACES], bookmark_seconds=1e9)
    double.put(VALIDATING, configuration("ours", failurePolicy="Ignore"))
    begins = "POST /apis/networking.istio.io/v1/namespaces/istio-system/gateways?dryRun=All"
    double.fail(begins, 200, times=10)
    double.fail(begins, 422, times=1, message="admission webhook denied the request")
    connect = partial(ApiClient, IN_MEMORY, transport=double.transport())
    keeper = CaBundleWriter(connect, lambda: ROOT, revision="", namespace="istio-system")

    def policy() -> object:
        found = double.find(VALIDATING, "ours")
        return found and found["webhooks"][0]["failurePolicy"]

    async with trio.open_nursery() as nursery:
        with capture_logs() as logs:
            nursery.start_soon(keeper.run, FOREVER)
            await double.until(lambda: policy() == "Fail")
        nursery.cancel_scope.cancel()
    said = [line for line in logs if line.get("name") == "failurePolicy"]
    assert len(said) == 1
    assert "was not refused in a dry run" in said[0]["reason"]


async def test_who_writes_the_same_objects_is_not_answered_each_time(autojump_clock: trio.testing.MockClock) -> None:
    """An istiod of the same revision, say, with roots of its own."""
    double = ApiDouble([VALIDATING, MUTATING, NAMESPACES, CONFIG_MAPS], bookmark_seconds=1e9)
    connect = partial(ApiClient, IN_MEMORY, transport=double.transport())
    keeper = CaBundleWriter(connect, lambda: ROOT, revision="", namespace="istio-system")
    roots = RootCertificates(connect, lambda: ROOT, name="istio-ca-root-cert")
    double.put(MUTATING, configuration("ours"))
    double.put(NAMESPACES, {"metadata": {"name": "shop"}})

    def undo() -> None:
        """At once, whenever something was written."""
        if bundle_of(double, MUTATING) == ROOT:
            double.put(MUTATING, configuration("ours"))
        found = double.find(CONFIG_MAPS, "istio-ca-root-cert", "shop")
        if found is not None and found["data"]["root-cert.pem"] != "theirs":
            double.put(CONFIG_MAPS, {**found, "data": {"root-cert.pem": "theirs"}})

    def writes(path: str) -> int:
        return sum(request.startswith(("PATCH", "POST")) and path in request for request in double.requests)

    async def fight() -> None:
        while True:
            await trio.sleep(0.1)
            undo()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run, FOREVER)
        nursery.start_soon(roots.run, FOREVER)
        with trio.move_on_after(300):
            await fight()
        assert 10 <= writes("mutating") <= 40
        assert 10 <= writes("configmaps") <= 40
        await trio.sleep(60)
        assert bundle_of(double, MUTATING) == ROOT, "the last word is ours where they stop"
        found = double.find(CONFIG_MAPS, "istio-ca-root-cert", "shop")
        assert found is not None
        assert found["data"]["root-cert.pem"].encode() == ROOT
        nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_a_plane_serves_them_over_https_and_counts(tmp_path: Path) -> None:
    own = WebhookSettings(address="127.0.0.1:0", injection=SETTINGS)
    async with running_plane(tmp_path, webhooks=own) as plane:
        roots = b"".join(plane.state.trust.own().roots).decode()
        context = ssl.create_default_context(cadata=roots)
        async with httpx.AsyncClient(
            verify=context, base_url=f"https://{plane.addresses.webhooks}", timeout=60
        ) as asking:
            assert (await asking.get("/httpsReady")).text == "ready\n"
            response = (await asking.post("/inject", json=review(pod()))).json()["response"]
            assert "patch" in response
            long = await asking.post(
                "/validate", content=b"x" * (MAX_BODY + 1), headers={"content-type": "application/json"}
            )
            assert long.status_code == 413
        host, _, port = plane.addresses.webhooks.rpartition(":")
        for name in ("istiod.istio-system.svc", "mesh-pilot.istio-system.svc"):
            tcp = await trio.open_tcp_stream(host, int(port))
            async with trio.SSLStream(tcp, context, server_hostname=name, https_compatible=True) as stream:
                await stream.do_handshake()  # fails for a name that is not in its certificate
        async with httpx.AsyncClient(timeout=60) as asking:
            text = (await asking.get(f"http://{plane.addresses.monitoring}/metrics")).text
        assert "sidecar_injection_success_total 1.0" in text
        assert "sidecar_injection_time_seconds_count 1.0" in text
