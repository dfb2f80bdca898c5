"""The resources that an API server has: asked for a group at a time, and remembered for a short time.

Source of the rules: Kubernetes, "The Kubernetes API", on discovery. The aggregated form is not asked for: it would be
megabytes where a server has many CRDs, and we want a few groups of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from mesh_pilot.kubernetes.apiserver.access import KubernetesError
from mesh_pilot.kubernetes.apiserver.resource import ApiResource, Object

REMEMBERED_SECONDS = 0.5


@attrs.frozen
class _Found:
    names: frozenset[str]
    until: float


class ApiDiscovery:
    """State: the versions of groups and the resources of versions that were asked for lately; who waits for news."""

    def __init__(self, get: Callable[[str], Awaitable[Object | None]]) -> None:
        """``get`` gives None for a path that the server does not have."""
        self._get = get
        self._found: dict[str, _Found] = {}
        self._turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._news = trio.Event()

    async def served_version(self, resource: ApiResource) -> str:
        """The newest version of a resource that both sides know; empty where there is none. Raises KubernetesError."""
        if not resource.group:
            served = frozenset(resource.versions[-1:])
        else:
            served = await self._names(resource.group_path)
        for version in reversed(resource.versions):
            if version in served and resource.plural in await self._names(f"{resource.group_path}/{version}"):
                return version
        return ""

    def renew(self) -> None:
        """Ask again, as CRDs have changed; who waits for a resource is woken."""
        self._found.clear()
        news, self._news = self._news, trio.Event()
        news.set()

    async def changed(self, seconds: float) -> bool:
        """Wait for news, at most ``seconds``; False if there were none."""
        with trio.move_on_after(seconds):
            await self._news.wait()
            return True
        return False

    async def _names(self, path: str) -> frozenset[str]:
        async with self._turns[path]:
            found = self._found.get(path)
            if found is None or trio.current_time() >= found.until:
                with _no_api_server(path):
                    names = frozenset(_names_in(await self._get(path)))
                found = self._found[path] = _Found(names, trio.current_time() + REMEMBERED_SECONDS)
            return found.names


def _names_in(document: Object | None) -> Iterator[str]:
    """The versions of a group, or the resources of a version. Raises LookupError and TypeError."""
    if document is None:
        return
    if "resources" in document:
        yield from (str(entry["name"]) for entry in document["resources"] or ())
    else:
        yield from (str(entry["version"]) for entry in document["versions"] or ())


@contextmanager
def _no_api_server(path: str) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError) as error:
        raise KubernetesError(f"{path}: what answers is not an API server") from error
