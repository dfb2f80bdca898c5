"""Where a control plane under test reads its configuration: a folder of YAML, or a Kubernetes API server."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import httpx
import yaml

from mesh_pilot.kubernetes.apiserver import load_access

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
CRDS = ROOT / "samples" / "kubernetes" / "crds.yaml"
_PLURALS = {"ServiceEntry": "serviceentries", "VirtualService": "virtualservices", "Sidecar": "sidecars"}
_ESTABLISHED_SECONDS = 60.0


class Store(Protocol):
    """Texts of YAML under names; each call returns when it took effect, of ``time.monotonic()``."""

    def write(self, name: str, text: str) -> float: ...

    def remove(self, name: str) -> float: ...


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> float:
        """Put a file into the folder in one step."""
        aside = self.path.parent / f".bench-{os.getpid()}-{name}"
        aside.write_text(text, encoding="utf-8")
        at = time.monotonic()
        aside.rename(self.path / name)
        return at

    def remove(self, name: str) -> float:
        at = time.monotonic()
        (self.path / name).unlink(missing_ok=True)
        return at


class Cluster:
    """Objects in an API server, where a kubeconfig leads with a token. State: what was written, by name and path.

    The time of a change is that of its first request.
    """

    def __init__(self, kubeconfig: Path) -> None:
        access = load_access(kubeconfig)
        trust = ssl.create_default_context(cadata=access.authority.read().decode() or None)
        self.kubeconfig = kubeconfig
        self._client = httpx.Client(
            base_url=access.server,
            verify=trust,
            headers={"authorization": f"Bearer {access.token.read().decode()}"},
            timeout=60,
            trust_env=False,
        )
        self._written: dict[str, dict[str, Object]] = {}

    def prepare(self, namespaces: Iterable[str]) -> None:
        """Istio's kinds and some namespaces, where they are missing."""
        crds = list(yaml.safe_load_all(CRDS.read_text(encoding="utf-8")))
        self._create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", *crds)
        self._create("/api/v1/namespaces", *({"metadata": {"name": name}} for name in namespaces))
        ends = time.monotonic() + _ESTABLISHED_SECONDS
        paths = [f"/apis/networking.istio.io/v1beta1/{plural}" for plural in _PLURALS.values()]
        while not all(self._client.get(path, params={"limit": 1}).is_success for path in paths):
            if time.monotonic() > ends:
                raise TimeoutError("the API server does not serve Istio's kinds")
            time.sleep(0.1)

    def write(self, name: str, text: str) -> float:
        """Create or change what differs from the text before, and delete what is no longer in it."""
        before = self._written.get(name, {})
        after = {_path(found): found for found in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))}
        self._written[name] = after
        changed = [path for path, found in after.items() if before.get(path) != found]
        at = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: self._put(path, after[path], path in before), changed))
            list(pool.map(self._delete, before.keys() - after.keys()))
        return at

    def remove(self, name: str) -> float:
        return self.write(name, "")

    def _put(self, path: str, found: Object, is_there: bool) -> None:
        if is_there:
            merge = {"content-type": "application/merge-patch+json"}
            self._client.patch(path, json=found, headers=merge).raise_for_status()
        else:
            self._create(path.rpartition("/")[0], found)

    def _create(self, path: str, *objects: Object) -> None:
        for found in objects:
            reply = self._client.post(path, json=found)
            if reply.status_code != httpx.codes.CONFLICT:
                reply.raise_for_status()

    def _delete(self, path: str) -> None:
        self._client.delete(path).raise_for_status()


def _path(found: Object) -> str:
    names = found["metadata"]
    root = f"/apis/{found['apiVersion']}/namespaces/{names['namespace']}"
    return f"{root}/{_PLURALS[found['kind']]}/{names['name']}"
