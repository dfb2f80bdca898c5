"""Sources of Istio objects that a test takes away and brings back, with other objects than before.

Each has ``flags`` of ``mesh-pilot discovery`` by which it is read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio
import yaml
from google.protobuf import json_format

from tests.sources.kube_feed import RESOURCES, TOKEN, KubeFeed
from tests.support.galley import Classes, Galley
from tests.support.manifests import manifest

PLURALS = {"Gateway": "gateways", "ServiceEntry": "serviceentries", "VirtualService": "virtualservices"}
NAMESPACE = "shop"


class Away(Protocol):
    flags: tuple[str, ...]

    def put(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        """An object is there, or is changed; also while the source is away."""

    async def go(self) -> None: ...

    async def come(self) -> None: ...


@attrs.define
class AwayFolder:
    """A folder that is not mounted while it is away."""

    folder: Path
    flags: tuple[str, ...] = ()
    _is_away: bool = False

    def __attrs_post_init__(self) -> None:
        self.folder.mkdir()
        self.flags = (f"--config-dir={self.folder}",)

    @property
    def _elsewhere(self) -> Path:
        return self.folder.with_name("elsewhere")

    def put(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        at = self._elsewhere if self._is_away else self.folder
        new = at / f".{kind}-{name}.new"
        new.write_text(manifest(kind, name, spec))
        new.rename(at / f"{kind}-{name}.yaml")

    async def go(self) -> None:
        self._is_away = True
        self.folder.rename(self._elsewhere)

    async def come(self) -> None:
        self._is_away = False
        self._elsewhere.rename(self.folder)


class AwayKubernetes:
    """An API server of Kubernetes, named in ``configSources``."""

    def __init__(self, feed: KubeFeed, folder: Path, port: int) -> None:
        self._feed = feed
        kubeconfig, mesh = folder / "kubeconfig", folder / "mesh.yaml"
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }
        kubeconfig.write_text(yaml.safe_dump(config))
        mesh.write_text(f"configSources: [{{address: 'k8s://{kubeconfig}'}}]\n")
        self.flags: tuple[str, ...] = (f"--mesh-config={mesh}",)

    def put(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"}
        self._feed.api.put(RESOURCES[kind], {"metadata": metadata, "spec": json.loads(json.dumps(spec))})

    async def go(self) -> None:
        await self._feed.break_off()

    async def come(self) -> None:
        await self._feed.restore()


class AwayGalley:
    """An MCP server."""

    def __init__(self, classes: Classes, port: int) -> None:
        self._galley = Galley(classes)
        self._port = port
        self._serving: AbstractContextManager[str] = self._galley.serving(port)
        self.flags: tuple[str, ...] = (f"--mcp-server=127.0.0.1:{port}",)

    def put(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        type_name = f"istio.networking.v1alpha3.{kind}"
        body = json_format.ParseDict(spec, self._galley.classes[type_name]())
        collection = f"istio/networking/v1alpha3/{PLURALS[kind]}"
        self._galley.put(collection, f"{NAMESPACE}/{name}", type_name, body.SerializeToString())

    async def go(self) -> None:
        self._serving.__exit__(None, None, None)

    async def come(self) -> None:
        self._serving = self._galley.serving(self._port)
        self._serving.__enter__()


@asynccontextmanager
async def source_away(
    kind: str, folder: Path, free_ports: Callable[[int], list[int]], classes: Classes
) -> AsyncIterator[Away]:
    """A source of this kind, which is there: ``files``, ``kubernetes`` or ``mcp``."""
    (port,) = free_ports(1)
    match kind:
        case "files":
            yield AwayFolder(folder / "config")
        case "kubernetes":
            async with trio.open_nursery() as nursery:
                yield AwayKubernetes(await KubeFeed.open(nursery, port), folder, port)
                nursery.cancel_scope.cancel()
        case _:
            galley = AwayGalley(classes, port)
            await galley.come()
            try:
                yield galley
            finally:
                await galley.go()
