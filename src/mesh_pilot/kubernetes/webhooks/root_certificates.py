"""The ConfigMap ``istio-ca-root-cert`` in every namespace, with the roots by which injected sidecars know us.

A Pod with a sidecar mounts it, and does not start without. Istio's name and key; the leader alone writes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, ApiServerError, KubernetesError, Object, reflect
from mesh_pilot.kubernetes.webhooks.counts import RootCertificateCounts
from mesh_pilot.kubernetes.webhooks.injection.decision import SYSTEM_NAMESPACES
from mesh_pilot.kubernetes.webhooks.write_pace import WritePace
from mesh_pilot.replicas.election.base import Term

log = structlog.get_logger(scope="webhooks")

NAMESPACES = ApiResource("", ("v1",), "namespaces", "Namespace", cluster_scoped=True)
CONFIG_MAPS = ApiResource("", ("v1",), "configmaps", "ConfigMap")
KEY = "root-cert.pem"
LABELS = {"istio.io/config": "true"}

_NOT_FOUND, _CONFLICT = 404, 409


class RootCertificates:
    """Writes them. State: the namespaces, what their ConfigMaps say, and which of them are to be looked at."""

    def __init__(self, open_client: Callable[[], ApiClient], roots: Callable[[], bytes], *, name: str) -> None:
        """``name``: of the ConfigMaps."""
        self._open = open_client
        self._roots = roots
        self._name = name
        self._namespaces: set[str] = set()
        self._said: dict[str, str] = {}
        """The text of the ConfigMap of a namespace; namespaces without one are left out."""
        self._listed: set[ApiResource] = set()
        self._stale: set[str] = set()
        self._pace = WritePace[str]()
        self._wake = trio.Event()
        self._trouble = ""
        self._written = self._failed = 0

    def __repr__(self) -> str:
        return f"<RootCertificates {len(self._namespaces)} namespaces, {len(self._stale)} to be looked at>"

    def counts(self) -> RootCertificateCounts:
        return RootCertificateCounts(len(self._namespaces), self._written, self._failed)

    def roots_changed(self) -> None:
        """Look at all of them again."""
        self._look_at(*self._namespaces)

    async def run(self, term: Term) -> None:
        """Write for a term of leadership, until cancelled."""
        self._namespaces.clear()
        self._said.clear()
        self._listed.clear()
        self._stale.clear()
        self._pace.clear()
        async with self._open() as client, trio.open_nursery() as nursery:
            nursery.start_soon(partial(reflect, client, NAMESPACES, self, Backoff(), metadata_only=True))
            selector = f"metadata.name={self._name}"
            nursery.start_soon(partial(reflect, client, CONFIG_MAPS, self, Backoff(), field_selector=selector))
            await self._keep(client, term)

    # -- the listener of the reflectors

    async def listed(self, resource: ApiResource, version: str, objects: list[Object]) -> None:
        if resource == NAMESPACES:
            self._namespaces = {found["metadata"]["name"] for found in objects if _is_ours(found)}
        else:
            self._said = {found["metadata"]["namespace"]: _text(found) for found in objects}
        self._listed.add(resource)
        self._look_at(*self._namespaces)

    async def changed(self, resource: ApiResource, version: str, found: Object, *, there: bool) -> None:
        metadata = found["metadata"]
        if resource == NAMESPACES:
            name = metadata["name"]
            if there and _is_ours(found):
                self._namespaces.add(name)
            else:
                self._namespaces.discard(name)
        else:
            name = metadata["namespace"]
            if there:
                self._said[name] = _text(found)
            else:
                self._said.pop(name, None)
        self._look_at(name)

    def lost(self, resource: ApiResource, reason: str) -> None:
        self._say(reason)

    def found(self, resource: ApiResource) -> None:
        self._trouble = ""

    # -- what is written

    def _look_at(self, *namespaces: str) -> None:
        self._stale.update(namespaces)
        if len(self._listed) == 2:
            self._wake.set()

    async def _keep(self, client: ApiClient, term: Term) -> None:
        backoff = Backoff()
        while True:
            with trio.move_on_after(self._pace.seconds()):
                await self._wake.wait()
            self._wake = trio.Event()
            self._stale |= self._pace.due()
            for namespace in sorted(self._stale):
                self._stale.discard(namespace)
                try:
                    await self._settle(client, term, namespace)
                except KubernetesError as error:
                    self._failed += 1
                    self._say(str(error))
                    self._stale.add(namespace)
            if self._stale:
                await trio.sleep(backoff.next_seconds())
                self._wake.set()
            else:
                backoff.reset()

    async def _settle(self, client: ApiClient, term: Term, namespace: str) -> None:
        roots = self._roots().decode("ascii", "replace")
        said = self._said.get(namespace)
        if not roots or namespace not in self._namespaces or said == roots:
            return
        if self._pace.holds(namespace):
            self._say(
                f"somebody else writes ConfigMap {namespace}/{self._name} as well", "they are written now and then"
            )
            return
        term.check()
        data = {"metadata": {"labels": LABELS}, "data": {KEY: roots}}
        try:
            if said is not None:
                await client.patch(CONFIG_MAPS, self._name, data, namespace)
            else:
                body = {"metadata": {"name": self._name, "labels": LABELS}, "data": {KEY: roots}}
                await client.create(CONFIG_MAPS, body, namespace)
        except ApiServerError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT) and not _is_going(error):
                raise
            return  # it, or its namespace, has come or gone meanwhile: the watch brings it
        self._pace.written(namespace)
        self._written += 1
        if self._said.get(namespace) == said:  # else the watch was faster, and it is looked at again
            self._said[namespace] = roots

    def _say(self, reason: str, effect: str = "new pods with sidecars wait for them") -> None:
        if reason != self._trouble:
            self._trouble = reason
            log.warning("root certificates not written", reason=reason, effect=effect)


def _is_ours(namespace: Object) -> bool:
    metadata = namespace["metadata"]
    return metadata["name"] not in SYSTEM_NAMESPACES and not metadata.get("deletionTimestamp")


def _is_going(error: ApiServerError) -> bool:
    return "being terminated" in str(error)


def _text(config_map: Object) -> str:
    return str((config_map.get("data") or {}).get(KEY, ""))
