"""A signer of Kubernetes as the signer: what every kind of CA does, and what the API server says."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from mesh_pilot.app.settings import StartError
from mesh_pilot.app.signers import named_ca
from mesh_pilot.identity.signers.remote import CaError
from mesh_pilot.kubernetes.apiserver import Access, ApiClient, Pem
from mesh_pilot.kubernetes.identity.signer import KubernetesSigner
from mesh_pilot.kubernetes.identity.signer_settings import ConfigMapRoots, KubernetesSignerSettings, RootsFrom
from tests.identity.signers.conformance import AskedCa, SignerConformance, Story
from tests.kubernetes.fake_csr_api import REQUESTS, SIGNER, TOKEN, FakeCsrApi

ROOTS = RootsFrom(config_map=ConfigMapRoots(namespace="istio-system", name="mesh-roots"))


def story(*, approve: bool = True, key: str = "root-cert.pem") -> tuple[Story, FakeCsrApi]:
    api = FakeCsrApi()
    access = Access(server="https://kube:6443", token=Pem(text=TOKEN.encode()))
    roots = RootsFrom(config_map=ConfigMapRoots(namespace="istio-system", name="mesh-roots", key=key))
    settings = KubernetesSignerSettings(signer_name=SIGNER, approve=approve, roots_from=roots)
    signer = KubernetesSigner(settings, ApiClient(access, transport=api.transport()))
    return Story(AskedCa(signer, api, f"POST {REQUESTS}", TOKEN)), api


class TestKubernetesSigner(SignerConformance):
    @pytest.fixture
    def asked(self) -> AskedCa:
        return story()[0].asked


async def test_a_request_is_deleted_whatever_became_of_it(autojump_clock: MockClock) -> None:
    it, api = story()
    await it.sign()
    api.is_idle = True
    with pytest.raises(CaError, match="was not signed within 25 s: does the controller of this signer run") as raised:
        await it.sign()
    assert raised.value.reason == "busy"
    assert len(api.made) == 2
    assert api.objects == {}


async def test_somebody_else_may_have_to_approve(autojump_clock: MockClock) -> None:
    it, api = story(approve=False)
    with pytest.raises(CaError, match="no one has approved mesh-pilot-1 within 25 s"):
        await it.sign()
    assert not any("approval" in each for each in api.asked)


async def test_an_approval_is_repeated_if_somebody_has_changed_the_request(autojump_clock: MockClock) -> None:
    it, api = story()
    api.conflicts = 2
    await it.sign()
    assert len(api.made) == 1


async def test_a_config_map_without_the_key_is_told_with_the_keys_that_it_has(autojump_clock: MockClock) -> None:
    it, _ = story(key="ca.crt")
    with pytest.raises(CaError, match=r"ConfigMap istio-system/mesh-roots has no key ca\.crt; it has: root-cert\.pem"):
        await it.sign()


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: "https://kube:6443"}}]
users: [{name: test, user: {token: hush}}]
"""


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["roots: roots.pem"], "signerName: is missing"),
        (["signerName: kubernetes.io/kube-apiserver-client", "roots: roots.pem"], "sign for Kubernetes itself"),
        (
            ["signerName: mesh", "roots: roots.pem"],
            "'mesh' is not a signer's name, such as clusterissuers",
        ),
        (["signerName: example.com/mesh"], "name one: a file in roots, or in rootsFrom a configMap or"),
        (["signerName: example.com/mesh", "rootsFrom: {}"], "name one: a file in roots"),
        (
            ["signerName: example.com/mesh", "rootsFrom: {configMap: {name: x}}"],
            r"configMap\.namespace: is missing",
        ),
        (
            ["signerName: example.com/mesh", "roots: a.pem", "rootsFrom: {clusterTrustBundle: {}}"],
            "name one: a file in roots",
        ),
        (["signerName: example.com/mesh", "roots: a.pem", "kubeconfig: nowhere"], "kubeconfig: cannot read"),
        (
            ["signerName: example.com/mesh", "roots: a.pem", "context: other"],
            "context: there is no context other|other",
        ),
        (["signerName: example.com/mesh", "roots: a.pem", "approve: external"], "approve: is neither true nor false"),
    ],
)
def test_what_cannot_work_is_refused_with_its_line(
    lines: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    file = tmp_path / "signer.yaml"
    file.write_text("\n".join(["kind: kubernetes", *lines]))
    with pytest.raises(StartError, match=reason):
        named_ca(file)


def test_what_works_is_read(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    file = tmp_path / "signer.yaml"
    file.write_text(
        "kind: kubernetes\nsignerName: example.com/mesh\nkubeconfig: config\nrootsFrom: {clusterTrustBundle: {}}\n"
    )
    assert named_ca(file).ca.place == "Kubernetes at https://kube:6443 (example.com/mesh)"
