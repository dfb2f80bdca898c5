"""Where the kubeconfigs of other clusters are found: in a folder, or in Secrets as ``istioctl create-remote-secret``
makes them. Either is followed, and told whole at each change.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

import attrs
import httpx
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import (
    Access,
    ApiClient,
    ApiResource,
    ApiServerError,
    KubernetesError,
    Object,
    access_of_kubeconfig,
    load_access,
    reflect,
)
from mesh_pilot.sources.files.watch import Watched, Watcher
from mesh_pilot.sources.files.writers import Writers

SECRETS = ApiResource("", ("v1",), "secrets", "Secret")
SECRET_LABEL = "istio/multiCluster=true"
"""The label of Secrets with kubeconfigs: each key is a cluster id."""

LOOK_SECONDS = 30.0
"""A folder is looked at so often even if nothing tells of a change."""
GATHER_SECONDS = 0.1
"""The wait for more changes of a folder."""
MAX_BYTES = 1024 * 1024
"""The size of a kubeconfig, which is that of a Secret."""

_FORBIDDEN = 403
_ID = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,251}[A-Za-z0-9])?")
_ENDINGS = (".yaml", ".yml", ".kubeconfig", ".conf")

log = structlog.get_logger(scope="sources")


@attrs.frozen
class Kubeconfig:
    """A kubeconfig of a cluster."""

    cluster_id: str
    origin: str
    """The place for people: a path, or ``Secret istio-system/remote-west``."""
    text: bytes = attrs.field(repr=False)
    path: Path | None = None
    """The file of the kubeconfig; files that it names are relative to it. None: it is of a Secret."""
    allowed: frozenset[str] = frozenset()
    """Insecure fields that one of a Secret may have nevertheless."""

    def access(self) -> Access:
        """The way to the cluster. Raises KubernetesError."""
        if self.path is not None:
            return load_access(self.path)
        return access_of_kubeconfig(self.text.decode("utf-8", "replace"), self.origin, allowed=self.allowed)


Kubeconfigs = Mapping[str, Collection[Kubeconfig]]
"""All that there are, by origin."""

Put = Callable[[Kubeconfigs], Awaitable[None]]


@attrs.frozen(kw_only=True)
class ClusterSettings:
    """Where other clusters are found, and how long a start waits for them."""

    folder: Path | None = None
    """A folder of kubeconfigs; it wins over Secrets."""
    secrets: bool = False
    """True if Secrets of the own cluster are looked at."""
    sync_seconds: float = 30.0
    """The wait for their first pictures at the start; 0: as long as it takes."""
    allowed: frozenset[str] = frozenset()
    """Insecure fields that kubeconfigs of Secrets may have nevertheless."""


class KubeconfigFeed(Protocol):
    """A place where kubeconfigs are."""

    @property
    def trouble(self) -> str:
        """The reason why it cannot be read; empty while it can."""

    async def run(self, put: Put) -> None:
        """Pass on all kubeconfigs whenever they change, until cancelled. While it can't be read, nothing changes."""


class KubeconfigFolder:
    """A folder with a kubeconfig for each cluster: the name of a file, without an ending, is the cluster's id."""

    def __init__(self, folder: Path) -> None:
        self.trouble = ""
        self._folder = folder
        self._last: dict[str, tuple[Kubeconfig, ...]] | None = None
        self._named: set[str] = set()

    def __repr__(self) -> str:
        return f"<KubeconfigFolder {self._folder}: {len(self._last or ())}>"

    async def run(self, put: Put) -> None:
        self._last = None
        async with trio.open_nursery() as nursery:
            news = trio.Event()
            watcher = Watcher(nursery, lambda: news.set(), LOOK_SECONDS, Writers(LOOK_SECONDS))
            while True:
                news = trio.Event()
                await watcher.over(self._watched())
                try:
                    found = await trio.to_thread.run_sync(self._read)
                except OSError as error:
                    self._failed(f"cannot read the folder {self._folder}: {error.strerror}")
                else:
                    self.trouble = ""
                    if found != self._last:
                        self._last = found
                        await put(found)
                with trio.move_on_after(LOOK_SECONDS):
                    await news.wait()
                    await trio.sleep(GATHER_SECONDS)

    def _watched(self) -> Watched:
        return Watched.over([os.path.realpath(self._folder)], [str(self._folder)])

    def _failed(self, reason: str) -> None:
        if reason != self.trouble:
            log.warning("kubeconfigs cannot be read; the clusters stay as they are", why=reason)
        self.trouble = reason

    def _read(self) -> dict[str, tuple[Kubeconfig, ...]]:
        """The kubeconfigs in the folder. A file that can't be read, or is empty, is as it was."""
        found: dict[str, tuple[Kubeconfig, ...]] = {}
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith(".") or not path.is_file():
                continue
            name = next((path.name.removesuffix(end) for end in _ENDINGS if path.name.endswith(end)), path.name)
            if not _ID.fullmatch(name):
                self._passed_over(path)
                continue
            try:
                with path.open("rb") as file:
                    text = file.read(MAX_BYTES + 1)[:MAX_BYTES]
            except OSError:
                text = b""
            if text.strip():
                found[str(path)] = (Kubeconfig(name, str(path), text, path),)
            elif self._last is not None and str(path) in self._last:
                found[str(path)] = self._last[str(path)]
        return found

    def _passed_over(self, path: Path) -> None:
        if path.name not in self._named:
            self._named.add(path.name)
            log.warning("a file of kubeconfigs is not read: its name is not a cluster id", file=str(path))


class KubeconfigSecrets:
    """The Secrets of a namespace that are labelled as kubeconfigs of other clusters.

    State: the kubeconfigs by name of the Secret.
    """

    def __init__(
        self,
        access: Access,
        namespace: str,
        *,
        allowed: frozenset[str] = frozenset(),
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """``allowed``: insecure fields that the kubeconfigs may have nevertheless."""
        self.trouble = ""
        self._access = access
        self._namespace = namespace
        self._allowed = allowed
        self._backoff = backoff
        self._found: dict[str, tuple[Kubeconfig, ...]] = {}
        self._put: Put | None = None

    def __repr__(self) -> str:
        return f"<KubeconfigSecrets of {self._namespace}: {len(self._found)}>"

    async def run(self, put: Put) -> None:
        self._put = put
        async with ApiClient(self._access) as client:
            if await self._is_forbidden(client):
                await put(dict(self._found))  # nobody waits for what we may not see
            await reflect(
                client, SECRETS, self, self._backoff(), namespace=self._namespace, label_selector=SECRET_LABEL
            )

    async def _is_forbidden(self, client: ApiClient) -> bool:
        try:
            await client.list_all(SECRETS, self._namespace, label_selector=SECRET_LABEL)
        except ApiServerError as error:
            return error.status == _FORBIDDEN
        except (KubernetesError, httpx.HTTPError):
            return False
        return False

    # -- what the reflector reports

    async def listed(self, resource: ApiResource, version: str, objects: list[Object]) -> None:
        found = [self._read(each) for each in objects]
        self._found = {origin: configs for origin, configs in found if configs is not None}
        await self._tell()

    async def changed(self, resource: ApiResource, version: str, found: Object, *, there: bool) -> None:
        origin, configs = self._read(found)
        if there and configs is not None:
            self._found[origin] = configs
        else:
            self._found.pop(origin, None)
        await self._tell()

    def lost(self, resource: ApiResource, reason: str) -> None:
        if not self.trouble:
            log.warning("kubeconfigs cannot be read; the clusters stay as they are", why=reason)
        self.trouble = reason

    def found(self, resource: ApiResource) -> None:
        self.trouble = ""

    async def _tell(self) -> None:
        assert self._put is not None
        await self._put(dict(self._found))

    def _read(self, found: Object) -> tuple[str, tuple[Kubeconfig, ...] | None]:
        """The origin and the kubeconfigs of a Secret. What is not base64 is kept as it is: it is not a kubeconfig."""
        metadata = found["metadata"]
        origin = f"Secret {metadata.get('namespace', self._namespace)}/{metadata['name']}"
        data = found.get("data") or {}
        return origin, tuple(
            Kubeconfig(str(name), origin, _decoded(str(value)), allowed=self._allowed) for name, value in data.items()
        )


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return value.encode()
