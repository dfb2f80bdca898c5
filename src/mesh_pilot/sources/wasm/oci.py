"""Modules in registries of images: references, tokens, manifests, and the layer that is the module.

Rules: the OCI Distribution Specification; Docker's token authentication; for what is taken for a module, Istio's agent:
an image whose last layer is an archive with ``plugin.wasm``, of Docker's or of OCI's media types, or an artifact with a
layer of the module itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import attrs

from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.model.modules import DIGEST, OCI
from mesh_pilot.net.fetching import FetchedAnswer, Fetcher, FetchError, TooLarge, shown_url
from mesh_pilot.net.fetching.fetcher import MAX_REDIRECTS, Take
from mesh_pilot.sources.wasm.content import FetchedModule, Unpacking

MANIFEST_BYTES = 4 * 1024 * 1024
TOKEN_BYTES = 64 * 1024

DOCKER_HUB = "index.docker.io"
_DOCKER_HUB_SERVER = "registry-1.docker.io"
_DOCKER_HUB_KEY = "https://index.docker.io/v1/"

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", _DOCKER_MANIFEST)

_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_MODULE_LAYERS = ("application/vnd.module.wasm.content.layer.v1+wasm", "application/wasm")

_PLATFORMS = (("linux", "amd64"), ("wasi", "wasm"), ("wasip1", "wasm"))
"""Platforms of which one is taken from an image for several: the first of these, as Istio's agent does."""

_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME = re.compile(f"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")


@attrs.frozen
class Image:
    """A reference to an image, taken apart."""

    host: str
    """``ghcr.io``, with its port if it has one."""
    repository: str
    tag: str
    digest: str
    """``sha256:...``; empty: what the tag names."""

    @property
    def reference(self) -> str:
        return self.digest or self.tag


def parse_image(url: str) -> Image:
    """The image of a URL. A host is optional, as for Docker; so is a tag. Raises FetchError."""
    text, _, digest = url.removeprefix(OCI).partition("@")
    # Docker's rule of what is a host: what comes before the first slash, if no path of Docker Hub could look like it.
    host, slash, rest = text.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, rest = DOCKER_HUB, text
    elif host == "docker.io":
        host = DOCKER_HUB
    repository, _, tag = rest.partition(":")
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not _NAME.fullmatch(repository) or (tag and not _TAG.fullmatch(tag)):
        raise FetchError(f"{shown_url(url)} names no image: oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:...")
    if digest and not _SHA256.fullmatch(digest):
        raise FetchError(f"{shown_url(url)}: {digest[:100]} is not a digest: sha256: and 64 hexadecimal digits")
    return Image(host, repository, tag or ("" if digest else "latest"), digest)


@attrs.frozen
class ImageCredentials:
    """The proof for a registry of who asks; empty: anybody."""

    user: str = ""
    password: str = attrs.field(default="", repr=False)
    identity_token: str = attrs.field(default="", repr=False)
    """The identity token to get a registry's token with, in place of user and password."""
    registry_token: str = attrs.field(default="", repr=False)
    """A token of the registry itself."""

    @property
    def basic(self) -> dict[str, str]:
        """The header with user and password; none without a user."""
        if not self.user:
            return {}
        text = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {text}"}


def credentials_for(host: str, docker_config: bytes) -> ImageCredentials:
    """The credentials for a registry in a Docker configuration. Raises FetchError if it has none."""
    try:
        found: dict[str, Any] = dict(json.loads(docker_config)["auths"].items())
        entry = next((found[key] for key in _keys(host) if key in found), None)
        if entry is None:
            raise FetchError(f"the pull secret has no credentials for {host}")
        user, password = entry.get("username", ""), entry.get("password", "")
        if entry.get("auth"):
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        return ImageCredentials(user, password, entry.get("identitytoken", ""), entry.get("registrytoken", ""))
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, RecursionError):
        raise FetchError("the pull secret is not a Docker configuration") from None


def _keys(host: str) -> Sequence[str]:
    """The spellings of a registry as a key of a Docker configuration."""
    hub = (_DOCKER_HUB_KEY, "docker.io") if host == DOCKER_HUB else ()
    return (host, f"https://{host}", f"http://{host}", f"https://{host}/v1/", f"https://{host}/v2/", *hub)


class ImageRegistry:
    """A registry, for one image. State: the token that it gave."""

    def __init__(
        self,
        fetcher: Fetcher,
        image: Image,
        docker_config: bytes | None,
        limit: int,
        seconds: float,
        *,
        is_insecure: bool,
    ) -> None:
        """``limit``: the bytes of the largest module; ``seconds``: for a request; ``is_insecure``: without TLS, too."""
        self._fetcher = fetcher
        self._seconds = seconds
        self._image = image
        self._credentials = ImageCredentials() if docker_config is None else credentials_for(image.host, docker_config)
        self._limit = limit
        self._may_be_plain = is_insecure
        self._scheme = "http" if _LOOPBACK.fullmatch(image.host) else "https"
        self._authorization: dict[str, str] = {}
        if self._credentials.registry_token:
            self._authorization = {"Authorization": f"Bearer {self._credentials.registry_token}"}

    def __repr__(self) -> str:
        return f"<ImageRegistry {self._image}>"

    async def fetch(self, expected: str, mark: str) -> FetchedModule:
        """The module of the image. ``expected``: the checksum of its manifest, empty for any. Raises FetchError."""
        digest, manifest = await self._manifest(self._image.reference)
        digests = [digest]
        if self._image.digest and digest != self._image.digest:
            raise FetchError(f"the registry answers with {digest} for {self._image.digest}")
        if manifest.get("mediaType") in _INDEXES or "manifests" in manifest:
            digest, manifest = await self._manifest(_platform(manifest))
            digests.append(digest)
        if expected and f"{DIGEST}{expected}" not in digests:
            raise FetchError(f"the image has the digest {digests[-1]}, not {DIGEST}{expected}")
        if mark == digest:
            return FetchedModule(None, mark)
        return FetchedModule(await self._module(manifest), digest)

    async def _manifest(self, reference: str) -> tuple[str, Mapping[str, Any]]:
        """Digest and content of a manifest."""
        accept = {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}
        body = await self._get(f"manifests/{reference}", MANIFEST_BYTES, accept)
        digest = f"{DIGEST}{hashlib.sha256(body).hexdigest()}"
        if reference.startswith(DIGEST) and digest != reference:
            raise FetchError(f"the registry answers with {digest} for {reference}")
        return digest, _json_object(body, "a manifest")

    async def _module(self, manifest: Mapping[str, Any]) -> bytearray:
        """The module of a manifest."""
        layers = as_objects(manifest, "layers")
        if not layers:
            raise FetchError("the image has no layers")
        last, kinds = layers[-1], [str(layer.get("mediaType", "")) for layer in layers]
        packed = _DOCKER_LAYER if manifest.get("mediaType") == _DOCKER_MANIFEST else _OCI_LAYER
        if kinds[-1] == packed:
            return await self._blob(last, Unpacking.of_layer(self._limit))
        for layer, kind in zip(layers, kinds, strict=True):
            if kind in _MODULE_LAYERS:
                return await self._blob(layer, Unpacking(self._limit))
        raise FetchError(f"the image has no module: its layers are {', '.join(kinds)[:300]}")

    async def _blob(self, layer: Mapping[str, Any], unpacking: Unpacking) -> bytearray:
        """The module in a blob."""
        digest, size = str(layer.get("digest", "")), layer.get("size", 0)
        if not _SHA256.fullmatch(digest):
            raise FetchError(f"a layer of the image has no sha256 digest: {digest[:100]!r}")
        if isinstance(size, int) and size > self._limit:
            raise FetchError(f"has more than {self._limit} bytes (--wasm-module-bytes)")
        found = hashlib.sha256()
        trouble = ""

        def take(part: bytes) -> Iterator[None]:
            nonlocal trouble
            found.update(part)
            if not trouble:
                try:
                    yield from unpacking.feed(part)
                except FetchError as error:
                    trouble = str(error)  # unless the bytes are others than they should be

        with unpacking:
            await self._get(f"blobs/{digest}", self._limit, {}, take)
            if f"{DIGEST}{found.hexdigest()}" != digest:
                raise FetchError(f"the registry answers with other bytes than those of {digest}")
            if trouble:
                raise FetchError(trouble)
            return unpacking.finish()

    async def _get(self, path: str, limit: int, headers: dict[str, str], take: Take | None = None) -> bytes:
        """The answer of the registry, with a token if it wants one; empty if it is taken piece by piece."""
        answer = await self._ask(path, limit, headers, take)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            self._authorization = await self._token(answer.headers.get("www-authenticate", ""))
            answer = await self._ask(path, limit, headers, take)
        answered = answer.status
        if answered in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            who = self._credentials.user or (
                "the pull secret" if self._credentials != ImageCredentials() else "anybody"
            )
            raise FetchError(f"{self._image.host} refuses {self._image.repository} to {who}")
        if answered == HTTPStatus.NOT_FOUND:
            raise FetchError(f"{self._image.host} has no {self._image.repository} {self._image.reference}")
        if answered != HTTPStatus.OK:
            raise FetchError(f"{self._image.host} answers {answered}")
        return answer.body

    async def _ask(self, path: str, limit: int, headers: dict[str, str], take: Take | None) -> FetchedAnswer:
        host = _DOCKER_HUB_SERVER if self._image.host == DOCKER_HUB else self._image.host
        where = f"{host}/v2/{self._image.repository}/{path}"
        sent = headers | self._authorization
        try:
            return await self._fetched(f"{self._scheme}://{where}", limit, sent, take=take)
        except TooLarge:
            raise
        except FetchError:
            if not self._may_be_plain or self._scheme == "http":
                raise
            answer = await self._fetched(f"http://{where}", limit, sent, take=take)
            self._scheme = "http"
            return answer

    async def _fetched(
        self,
        url: str,
        limit: int,
        headers: dict[str, str],
        *,
        form: dict[str, str] | None = None,
        take: Take | None = None,
    ) -> FetchedAnswer:
        try:
            return await self._fetcher.ask(
                url,
                limit=limit,
                seconds=self._seconds,
                headers=headers,
                form=form,
                redirects=0 if form is not None else MAX_REDIRECTS,
                take=take,
            )
        except TooLarge as error:
            hint = " (--wasm-module-bytes)" if limit == self._limit else ""
            raise TooLarge(f"{error}{hint}") from None

    async def _token(self, challenge: str) -> dict[str, str]:
        """The header that answers a challenge of the registry."""
        kind, _, text = challenge.partition(" ")
        if kind.lower() == "basic":
            return self._credentials.basic
        if kind.lower() != "bearer":
            raise FetchError(f"{self._image.host} wants to be told who asks in an unknown way: {kind[:50]!r}")
        said = dict(_CHALLENGE.findall(text))
        realm = said.get("realm", "")
        if not realm.startswith("https://") and not (realm.startswith("http://") and self._scheme == "http"):
            raise FetchError(f"{self._image.host} names no place with https for its tokens: {realm[:200]!r}")
        scope = said.get("scope") or f"repository:{self._image.repository}:pull"
        service = said.get("service", "")
        # Docker's two ways to a token: an identity token is exchanged in a form that is posted (OAuth2), any other
        # proof goes with a query. The realm is the registry's word, so secrets only go there over https.
        if self._credentials.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": self._credentials.identity_token,
                "service": service,
                "scope": scope,
                "client_id": "mesh-pilot",
            }
            answer = await self._fetched(realm, TOKEN_BYTES, {}, form=form)
        else:
            query = {"service": service, "scope": scope}
            pairs = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)
            url = f"{realm}{'&' if '?' in realm else '?'}{pairs}"
            answer = await self._fetched(url, TOKEN_BYTES, self._credentials.basic)
        if answer.status != HTTPStatus.OK:
            raise FetchError(f"{self._image.host} gives no token for {self._image.repository}: {answer.status}")
        found = _json_object(answer.body, "a token")
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise FetchError(f"{self._image.host} answers with no token")
        return {"Authorization": f"Bearer {token}"}


def _platform(index: Mapping[str, Any]) -> str:
    """The digest of the manifest that is taken of an index."""
    entries = as_objects(index, "manifests")
    by_platform: dict[tuple[str, str], str] = {}
    for entry in entries:
        named = as_object(entry, "platform")
        key = (str(named.get("os", "")), str(named.get("architecture", "")))
        by_platform.setdefault(key, str(entry.get("digest", "")))
    found = next((by_platform[key] for key in _PLATFORMS if key in by_platform), "")
    if not found and len(entries) == 1:
        found = str(entries[0].get("digest", ""))
    if not _SHA256.fullmatch(found):
        raise FetchError("the image is for several platforms, and linux/amd64 is not one of them")
    return found


def _json_object(body: bytes, what: str) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FetchError(f"the registry answers with what is not {what}")
    return found
