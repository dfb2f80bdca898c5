"""Certificates by Kubernetes' API of requests for them, as istiod gets them with ``PILOT_CERT_PROVIDER=k8s.io/...``.

For each certificate a ``CertificateSigningRequest`` is created, approved, watched until a signer has put the
certificate into its status, and deleted. The API has no place for names: they are those of the CSR. Source of the
rules: Kubernetes, "Certificates and Certificate Signing Requests".
"""

from __future__ import annotations

import base64
import binascii
from contextlib import AsyncExitStack, suppress

import trio
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from mesh_pilot.base.reading import as_object, as_objects, as_string
from mesh_pilot.identity.signers.remote import CaError, CaRoots, pem_certificates
from mesh_pilot.identity.signers.signing import SigningRequest
from mesh_pilot.identity.signers.wire import one_line
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, ApiServerError, KubernetesError, Object, load_access
from mesh_pilot.kubernetes.apiserver.decoding import LineBuffer, read_event, read_object
from mesh_pilot.kubernetes.identity.signer_settings import ConfigMapRoots, KubernetesSignerSettings, TrustBundleRoots

GROUP = "certificates.k8s.io"
REQUESTS = ApiResource(GROUP, ("v1",), "certificatesigningrequests", "CertificateSigningRequest", cluster_scoped=True)
TRUST_BUNDLES = ApiResource(
    GROUP, ("v1alpha1", "v1beta1", "v1"), "clustertrustbundles", "ClusterTrustBundle", cluster_scoped=True
)
CONFIG_MAPS = ApiResource("", ("v1",), "configmaps", "ConfigMap")

NAME = "mesh-pilot-"
"""Names of requests begin so; the API server adds the rest."""

USAGES = ("digital signature", "key encipherment", "server auth", "client auth")
"""As istiod's."""

LEAST_SECONDS = 600
"""The shortest life that the API lets one ask for."""

SIGNED_SECONDS = 25.0
"""The time in which a request has to be approved and signed; whoever asked waits no longer than that."""

DELETE_SECONDS = 5.0
"""The time for deleting a request. What stays, the cluster deletes: pending after a day, others after an hour."""

APPROVALS = 3
"""Attempts at approving a request that others change at the same time."""

MAX_LINE_BYTES = 1_000_000
"""The longest event of a watch of one request."""

_REASONS = {400: "refused", 401: "forbidden", 403: "forbidden", 404: "not_found", 422: "refused"}
_BUSY = frozenset({409, 429, 500, 502, 503, 504})
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


class KubernetesSigner:
    """A signer. Mutable state: the client, which is opened for the first request."""

    names_from_csr = True

    def __init__(self, settings: KubernetesSignerSettings, client: ApiClient | None = None) -> None:
        """``client``: of the API server, in place of that of the settings. Raises KubernetesError."""
        self._settings = settings
        self._client = client or ApiClient(load_access(settings.kubeconfig, settings.context))
        self.place = f"Kubernetes at {self._client.access.server} ({settings.signer_name})"
        self._opened = AsyncExitStack()
        self._is_open = False

    def __repr__(self) -> str:
        return f"<KubernetesSigner {self.place}>"

    async def ask(self, request: SigningRequest) -> list[x509.Certificate]:
        """See ``RemoteCa``."""
        client = await self._ready()
        try:
            made = await client.create(REQUESTS, self._body(request))
        except KubernetesError as error:
            raise self._told(error, "create", "certificatesigningrequests") from None
        name = as_string(made, "metadata", "name")
        try:
            if self._settings.approve:
                made = await self._approved(client, made)
            return await self._signed(client, name, made)
        finally:
            with trio.move_on_after(DELETE_SECONDS, shield=True):
                await self._delete(client, name)

    async def roots(self) -> CaRoots:
        """See ``RemoteCa``."""
        found = self._settings.roots_from
        if found is None:
            return CaRoots(())  # they are in a file
        client = await self._ready()
        if found.config_map is not None:
            return CaRoots(tuple(await self._of_config_map(client, found.config_map)))
        assert found.cluster_trust_bundle is not None
        return CaRoots(tuple(await self._of_trust_bundles(client, found.cluster_trust_bundle)))

    async def aclose(self) -> None:
        """See ``RemoteCa``."""
        self._is_open = False
        await self._opened.aclose()

    async def _ready(self) -> ApiClient:
        if not self._is_open:
            self._is_open = True
            await self._opened.enter_async_context(self._client)
        return self._client

    # -- a request

    def _body(self, request: SigningRequest) -> Object:
        seconds = max(int(request.lifetime.total_seconds()), LEAST_SECONDS)
        pem = request.csr.public_bytes(serialization.Encoding.PEM)
        return {
            "metadata": {"generateName": NAME, "labels": {"app.kubernetes.io/managed-by": "mesh-pilot"}},
            "spec": {
                "request": base64.b64encode(pem).decode(),
                "signerName": self._settings.signer_name,
                "expirationSeconds": seconds,
                "usages": USAGES,
            },
        }

    async def _approved(self, client: ApiClient, made: Object) -> Object:
        condition = {
            "type": "Approved",
            "status": "True",
            "reason": "AuthenticatedByMeshPilot",
            "message": "The control plane of the mesh has authenticated the workload that is named in the request.",
        }
        for attempt in range(APPROVALS):
            others = as_objects(made, "status", "conditions")
            body = {**made, "status": {**as_object(made, "status"), "conditions": [*others, condition]}}
            try:
                return await client.update(REQUESTS, body, subresource="approval")
            except ApiServerError as error:
                if error.status != _CONFLICT or attempt == APPROVALS - 1:
                    raise self._told(error, "update", self._approval) from None
            except KubernetesError as error:
                raise self._told(error, "update", self._approval) from None
            try:
                made = await client.get(REQUESTS.path("v1", name=as_string(made, "metadata", "name")))
            except KubernetesError as error:
                raise self._told(error, "get", "certificatesigningrequests") from None
        return made

    @property
    def _approval(self) -> str:
        return f"certificatesigningrequests/approval, and approve on signers {self._settings.signer_name}"

    async def _signed(self, client: ApiClient, name: str, made: Object) -> list[x509.Certificate]:
        """The certificate, once a signer has put it there. Raises CaError."""
        last = made
        with trio.move_on_after(SIGNED_SECONDS):
            while True:
                if (found := self._certificate(last)) is not None:
                    return found
                try:
                    last = await self._changed(client, name, last)
                except ApiServerError as error:
                    if error.status == _NOT_FOUND:
                        text = f"{self.place}: {name} was deleted before it was signed"
                        raise CaError("answer", text, passes=True) from None
                    raise self._told(error, "get and watch", "certificatesigningrequests") from None
                except KubernetesError as error:
                    raise self._told(error, "get and watch", "certificatesigningrequests") from None
        late = f"within {SIGNED_SECONDS:g} s"
        if not any(as_string(each, "type") == "Approved" for each in as_objects(last, "status", "conditions")):
            text = f"{self.place}: no one has approved {name} {late}: does an approver run? If not, set approve: true"
        else:
            text = f"{self.place}: {name} was not signed {late}: does the controller of this signer run?"
        raise CaError("busy", text)

    async def _changed(self, client: ApiClient, name: str, last: Object) -> Object:
        """The object after its next change, or as it is when a watch ends without one. Raises KubernetesError."""
        lines, found = LineBuffer(MAX_LINE_BYTES), list[Object]()
        with trio.CancelScope() as watching:

            async def take(part: bytes) -> None:
                for line in lines.feed(part):
                    event = read_event(line)
                    if event.type in ("MODIFIED", "DELETED"):
                        found.append(read_object(event.object))
                        watching.cancel()

            params: dict[str, str | int] = {
                "watch": "true",
                "fieldSelector": f"metadata.name={name}",
                "resourceVersion": as_string(last, "metadata", "resourceVersion"),
                "timeoutSeconds": int(SIGNED_SECONDS),
            }
            await client.stream(REQUESTS.path("v1"), take, params=params)
        # What was deleted may have been signed just before.
        return found[-1] if found and self._certificate(found[-1]) else await client.get(REQUESTS.path("v1", name=name))

    def _certificate(self, found: Object) -> list[x509.Certificate] | None:
        """The certificate in a request's status; None if it is not there yet. Raises CaError."""
        for each in as_objects(found, "status", "conditions"):
            if (kind := as_string(each, "type")) in ("Denied", "Failed"):
                said = ": ".join(filter(None, (one_line(as_string(each, part)) for part in ("reason", "message"))))
                raise CaError(
                    "refused", f"{self.place}: {as_string(found, 'metadata', 'name')} is {kind.lower()}: {said}"
                )
        text = as_string(found, "status", "certificate")
        if not text:
            return None
        try:
            pem = base64.b64decode(text, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise CaError("answer", f"{self.place}: its certificate is not PEM in base64") from None
        return pem_certificates([pem], self.place)

    async def _delete(self, client: ApiClient, name: str) -> None:
        """Delete a request that is done. The cluster deletes what we cannot, later."""
        with suppress(KubernetesError):
            await client.delete(REQUESTS, name)

    # -- roots

    async def _of_config_map(self, client: ApiClient, where: ConfigMapRoots) -> list[x509.Certificate]:
        path = CONFIG_MAPS.path("v1", where.namespace, where.name)
        whose = f"{self.place}: the ConfigMap {where.namespace}/{where.name}"
        try:
            found = await client.get(path)
        except KubernetesError as error:
            raise self._told(error, "get", f"configmaps, in the namespace {where.namespace}") from None
        text = as_string(found, "data", where.key)
        if not text:
            keys = ", ".join(sorted(as_object(found, "data"))) or "none"
            raise CaError("roots", f"{whose} has no key {where.key}; it has: {one_line(keys)}")
        return pem_certificates([text], f"{whose}, {where.key},")

    async def _of_trust_bundles(self, client: ApiClient, where: TrustBundleRoots) -> list[x509.Certificate]:
        try:
            version = await client.served_version(TRUST_BUNDLES)
            if not version:
                text = f"{self.place}: this cluster has no ClusterTrustBundles; name a configMap in rootsFrom"
                raise CaError("roots", text)
            if where.name:
                found = [await client.get(TRUST_BUNDLES.path(version, name=where.name))]
            else:
                selector = f"spec.signerName={self._settings.signer_name}"
                found = await client.list_all(TRUST_BUNDLES, version=version, field_selector=selector)
        except KubernetesError as error:
            raise self._told(error, "get" if where.name else "list", "clustertrustbundles") from None
        if not found:
            text = f"{self.place}: there is no ClusterTrustBundle whose signerName is {self._settings.signer_name}"
            raise CaError("roots", text)
        bundles = [as_string(each, "spec", "trustBundle") for each in found]
        return pem_certificates(bundles, f"{self.place}: its ClusterTrustBundle")

    # -- errors

    def _told(self, error: KubernetesError, verbs: str, resource: str) -> CaError:
        """An error of the API server, with what to do about it."""
        if not isinstance(error, ApiServerError):
            return CaError("unreachable", f"{self.place}: {error}", passes=True)
        text = f"{self.place}: {one_line(str(error))}"
        if error.status == _FORBIDDEN:
            text += f"; its role needs {verbs} on {resource}"
        if error.status in _BUSY:
            wait = error.retry_after_seconds or None
            return CaError("busy", text, error.status, passes=True, wait_seconds=wait)
        return CaError(_REASONS.get(error.status, "status"), text, error.status)
