"""Requests for certificates at a real API server: what it takes, who may do what, what a signer's controller says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from mesh_pilot.identity.signers.remote import CaError, RemoteSigner
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.kubernetes.apiserver import ApiClient, load_access
from mesh_pilot.kubernetes.identity.signer import KubernetesSigner
from mesh_pilot.kubernetes.identity.signer_settings import (
    ConfigMapRoots,
    KubernetesSignerSettings,
    RootsFrom,
    TrustBundleRoots,
)
from mesh_pilot.model.spiffe import Identity
from tests.support.apiserver import ApiServer, Namespace
from tests.support.csr_signer import PEM, CsrSigner, signing
from tests.support.envoy import eventually

pytestmark = pytest.mark.process

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "kubernetes-signer"
WEB = Identity("cluster.local", "shop", "web")
NAME = "clusterissuers.cert-manager.io/mesh"


@attrs.define(eq=False)
class Story:
    """A signer over a real API server, and the controller behind it."""

    controller: CsrSigner
    namespace: Namespace
    ca: KubernetesSigner
    trust: TrustStore = attrs.field(factory=TrustStore)
    signer: RemoteSigner = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.signer = RemoteSigner(self.ca, self.trust, lambda: datetime.now(UTC))

    async def sign(self, **more: Any) -> SignedCertificate:
        csr = new_request(ec.generate_private_key(ec.SECP256R1()), WEB)
        return await self.signer.sign(attrs.evolve(SigningRequest(csr, timedelta(hours=1), WEB), **more))


@asynccontextmanager
async def story(
    apiserver: ApiServer, *, user: str = "", token: str = "", roots: RootsFrom | None = None, **more: Any
) -> AsyncIterator[Story]:
    async with apiserver.namespace() as namespace, signing(apiserver, NAME) as controller:
        text = controller.root.certificate.public_bytes(PEM).decode()
        await apiserver.apply(namespace.object("v1", "ConfigMap", "mesh-roots", data={"root-cert.pem": text}))
        access = load_access(apiserver.kubeconfig(token=token) if token else apiserver.kubeconfig())
        named = roots or RootsFrom(config_map=ConfigMapRoots(namespace=namespace.name, name="mesh-roots"))
        settings = KubernetesSignerSettings(signer_name=NAME, roots_from=named, **more)
        found = Story(controller, namespace, KubernetesSigner(settings, ApiClient(access)))
        try:
            yield found
        finally:
            await found.ca.aclose()


async def test_a_certificate_is_signed_and_its_request_deleted(apiserver: ApiServer) -> None:
    async with story(apiserver) as it:
        signed = await it.sign()
        names = signed.leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert list(names) == [x509.UniformResourceIdentifier(str(WEB))]
        assert len(x509.load_pem_x509_certificates(signed.chain)) == 3
        assert it.trust.own().roots == (it.controller.root.certificate.public_bytes(PEM),)
        (found,) = it.controller.seen.values()
        spec = found["spec"]
        assert (spec["signerName"], spec["expirationSeconds"], spec["username"]) == (NAME, 3600, "admin")
        name = found["metadata"]["name"]
        assert name.startswith("mesh-pilot-")
        await eventually(lambda: _true(name in it.controller.deleted), what="the request is deleted")


async def _true(value: bool) -> bool:
    return value


async def test_what_a_signer_refuses_is_told_in_its_words(apiserver: ApiServer) -> None:
    async with story(apiserver, approve=False) as it:
        it.controller.behaviour = "denied"
        with pytest.raises(CaError, match=r"mesh-pilot-.* is denied: ByPolicy: as the test says") as raised:
            await it.sign()
        assert raised.value.reason == "refused"
        it.controller.behaviour, it.controller.approves = "failed", True
        with pytest.raises(CaError, match=r"mesh-pilot-.* is failed: SignerError: the CA is out of order"):
            await it.sign()
        it.controller.behaviour = "signs"
        await it.sign()


async def test_what_was_signed_is_verified(apiserver: ApiServer) -> None:
    async with story(apiserver) as it:
        it.controller.key = ec.generate_private_key(ec.SECP256R1()).public_key()
        with pytest.raises(SigningError, match="another public key"):
            await it.sign()
        it.controller.key, it.controller.lifetime = None, timedelta(days=365)
        with pytest.raises(SigningError, match="longer than"):
            await it.sign()
        it.controller.lifetime = None
        with pytest.raises(SigningError, match="takes its names from there: name exactly URI"):
            await it.sign(csr=new_request(ec.generate_private_key(ec.SECP256R1())))


async def test_the_roles_of_the_sample_are_enough_and_each_missing_verb_is_named(apiserver: ApiServer) -> None:
    objects = list(yaml.safe_load_all((SAMPLE / "rbac.yaml").read_text(encoding="utf-8")))
    async with apiserver.namespace("istio-system") as namespace:
        account = namespace.object("v1", "ServiceAccount", "mesh-pilot")
        await apiserver.apply(account, *objects)
        token = await apiserver.account_token(namespace.name, "mesh-pilot")
        role = next(each for each in objects if each["kind"] == "ClusterRole")
        try:
            roots = RootsFrom(config_map=ConfigMapRoots(namespace="istio-system", name="mesh-roots"))
            async with signing(apiserver, NAME) as controller:
                text = controller.root.certificate.public_bytes(PEM).decode()
                await apiserver.apply(namespace.object("v1", "ConfigMap", "mesh-roots", data={"root-cert.pem": text}))
                settings = KubernetesSignerSettings(signer_name=NAME, roots_from=roots)
                ca = KubernetesSigner(settings, ApiClient(load_access(apiserver.kubeconfig(token=token))))
                it = Story(controller, namespace, ca)
                await _allowed(it)
                approval = "update on certificatesigningrequests/approval, and approve on signers"
                for verb, resource, told in (
                    ("create", "certificatesigningrequests", "create on certificatesigningrequests"),
                    ("update", "certificatesigningrequests/approval", approval),
                    ("approve", "signers", approval),
                    ("watch", "certificatesigningrequests", "get and watch on certificatesigningrequests"),
                ):
                    await apiserver.apply({**role, "rules": _without(role["rules"], verb, resource)})
                    await eventually(partial(_says, it, told), what=f"the error names {verb} on {resource}")
                await apiserver.apply(role)
                await _allowed(it)
                await ca.aclose()
        finally:
            await apiserver.delete(*(each for each in objects if each["kind"].startswith("Cluster")))


async def _allowed(it: Story) -> None:
    """The API server takes up roles a moment after they are written."""

    async def signed() -> bool:
        try:
            await it.sign()
        except CaError as error:
            assert error.reason == "forbidden", error
            return False
        return True

    await eventually(signed, what="the role is enough")


async def _says(it: Story, missing: str) -> bool:
    try:
        await it.sign()
    except CaError as error:
        return f"; its role needs {missing}" in str(error) and error.reason == "forbidden"
    return False


def _without(rules: list[dict[str, Any]], verb: str, resource: str) -> list[dict[str, Any]]:
    """The rules without one verb."""
    found = [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb]} if resource in rule["resources"] else rule
        for rule in rules
    ]
    assert found != rules
    return [rule for rule in found if rule["verbs"]]


async def test_roots_follow_the_config_map(apiserver: ApiServer) -> None:
    async with story(apiserver) as it:
        found = await it.ca.roots()
        assert found.certificates == (it.controller.root.certificate,)
        both = it.controller.root.certificate.public_bytes(PEM) + it.controller.ca.certificate.public_bytes(PEM)
        changed = it.namespace.object("v1", "ConfigMap", "mesh-roots", data={"root-cert.pem": both.decode()})
        await apiserver.apply(changed)
        assert len((await it.ca.roots()).certificates) == 2
        await apiserver.delete(changed)
        with pytest.raises(CaError, match='configmaps "mesh-roots" not found'):
            await it.ca.roots()


async def test_a_cluster_without_trust_bundles_is_told(apiserver: ApiServer) -> None:
    async with story(apiserver, roots=RootsFrom(cluster_trust_bundle=TrustBundleRoots())) as it:
        with pytest.raises(CaError, match="this cluster has no ClusterTrustBundles; name a configMap"):
            await it.ca.roots()


@pytest.mark.slow
async def test_roots_are_those_of_the_trust_bundles_of_the_signer(tmp_path: Path) -> None:
    server = ApiServer(tmp_path / "apiserver")
    flags = (
        "--feature-gates=ClusterTrustBundle=true",
        "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true",
    )
    server.start(flags=flags)
    try:
        async with signing(server, NAME) as controller:
            text = controller.root.certificate.public_bytes(PEM).decode()
            bundle = {
                "apiVersion": "certificates.k8s.io/v1beta1",
                "kind": "ClusterTrustBundle",
                "metadata": {"name": f"{NAME.replace('/', ':')}:v1"},
                "spec": {"signerName": NAME, "trustBundle": text},
            }
            for name in ("", bundle["metadata"]["name"]):
                roots = RootsFrom(cluster_trust_bundle=TrustBundleRoots(name=name))
                settings = KubernetesSignerSettings(signer_name=NAME, roots_from=roots)
                ca = KubernetesSigner(settings, ApiClient(load_access(server.kubeconfig())))
                if not name:
                    with pytest.raises(CaError, match=f"there is no ClusterTrustBundle whose signerName is {NAME}"):
                        await ca.roots()
                    await server.apply(bundle)
                assert (await ca.roots()).certificates == (controller.root.certificate,)
                await ca.aclose()
    finally:
        server.stop()
