"""The Kubernetes that holds the configuration: that of ``--kubeconfig``, or the one that we are in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING

import structlog
import trio

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.app.settings import Settings
from mesh_pilot.model.config import ConfigError
from mesh_pilot.sources.base.contract import FollowsMesh, Registry, Source
from mesh_pilot.world import World

if TYPE_CHECKING:
    from mesh_pilot.kubernetes.apiserver import Access, ApiClient, Object
    from mesh_pilot.kubernetes.apiserver.holder import ConfigHolder
    from mesh_pilot.kubernetes.source import KubernetesSource
    from mesh_pilot.kubernetes.source.mesh_maps import MeshMapNames
    from mesh_pilot.kubernetes.source.secret_accounts import SecretAccounts
    from mesh_pilot.kubernetes.source.selection import ObjectObserver

log = structlog.get_logger(scope="bootstrap")

NAME = "kubernetes-config"
"""Name of the source of its objects."""

FIRST_LOOK_SECONDS = 10.0
"""The wait for its mesh config at the start, all in all: no port is open in that time."""

SECOND_LOOK_SECONDS = 1.0
"""The same where one may be known of an earlier run."""

_NOT_FOUND = 404

Key = tuple[str, ...]


def config_holder(registries: Sequence[Registry]) -> ConfigHolder | None:
    """The registry whose API server holds configuration; None without one."""
    if not registries:
        return None
    from mesh_pilot.kubernetes.apiserver.holder import ConfigHolder

    return next((each for each in registries if isinstance(each, ConfigHolder)), None)


def config_access(settings: Settings) -> Access | None:
    """The API server that holds configuration; None: there is none."""
    holder = config_holder(settings.registries)
    return holder.access if holder is not None else None


def own_cluster_id(settings: Settings) -> str:
    """The id of the cluster that holds configuration; empty: there is none."""
    holder = config_holder(settings.registries)
    return holder.cluster_id if holder is not None else ""


def cluster_source(
    settings: Settings, observer: ObjectObserver | None = None, accounts: SecretAccounts | None = None
) -> KubernetesSource | None:
    """The source of all configuration there; None: there is none."""
    access = config_access(settings)
    if access is None:
        return None
    from mesh_pilot.kubernetes.source import ConfigSelection, KubernetesSource

    selection = ConfigSelection(secrets=True, mesh=_maps(settings), revision=settings.revision)
    return KubernetesSource(access, name=NAME, selection=selection, observer=observer, accounts=accounts)


async def cluster_mesh(
    settings: Settings, last: Callable[[], Awaitable[MeshConfig | None]] | None
) -> MeshConfig | None:
    """The mesh config of its ConfigMaps, which decides what else is read; what ``last`` gives if it can't be read now.

    None if the ConfigMaps do not exist. The source retries what it can't read now, and logs it.
    """
    access = config_access(settings)
    if access is None:
        return None
    from mesh_pilot.kubernetes.apiserver import KubernetesError

    try:
        if last is not None:
            try:
                return await _read_mesh(access, _maps(settings), SECOND_LOOK_SECONDS)
            except KubernetesError as error:
                if (known := await last()) is not None:
                    log.warning("the mesh config in Kubernetes cannot be read yet; the last is used", why=str(error))
                    return known
        return await _read_mesh(access, _maps(settings), FIRST_LOOK_SECONDS)
    except KubernetesError as error:
        log.warning("the mesh config in Kubernetes cannot be read yet", why=str(error))
    except ConfigError as error:
        log.warning("the mesh config in Kubernetes is wrong; the default is used", why=str(error))
    return None


async def _read_mesh(access: Access, names: MeshMapNames, seconds: float) -> MeshConfig | None:
    """Raises KubernetesError, ConfigError."""
    from mesh_pilot.kubernetes.apiserver import ApiClient, KubernetesError
    from mesh_pilot.kubernetes.source.mesh_maps import mesh_of

    # One deadline around it all: a credential plugin, the connection, and each answer have times of their own.
    with trio.move_on_after(seconds):
        async with ApiClient(access, answer_seconds=seconds) as client:
            found = {name: each for name in names.names if (each := await _config_map(client, names, name)) is not None}
        return mesh_of(names, found, access.server)
    raise KubernetesError(f"{access.server}: it did not answer in full within {seconds:g} s")


async def _config_map(client: ApiClient, names: MeshMapNames, name: str) -> Object | None:
    from mesh_pilot.kubernetes.apiserver import ApiServerError
    from mesh_pilot.kubernetes.source.mesh_maps import CONFIG_MAPS

    try:
        return await client.get(CONFIG_MAPS.path("v1", names.namespace, name))
    except ApiServerError as error:
        if error.status == _NOT_FOUND:
            return None
        raise


def _maps(settings: Settings) -> MeshMapNames:
    from mesh_pilot.kubernetes.source.mesh_maps import MeshMapNames

    return MeshMapNames(
        namespace=settings.namespace,
        revision=settings.revision,
        shared=settings.shared_mesh_config,
        reads_mesh=settings.mesh_config is None,
        reads_networks=settings.networks_config is None,
    )


def tell_mesh(sources: Sequence[Source], mesh: MeshConfig | None) -> None:
    """Tell the sources that depend on it the mesh config that is known at the start."""
    for source in sources:
        if mesh is not None and isinstance(source, FollowsMesh):
            source.mesh_changed(mesh)


def follow_mesh(sources: Sequence[Source], world: World, changed: Collection[Key]) -> None:
    """A revision of the World, and what changed in it."""
    if ("mesh",) in changed:
        tell_mesh(sources, world.mesh.peek(()))
