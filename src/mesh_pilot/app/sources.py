"""The sources that settings and mesh config name, in order of precedence."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import structlog

from mesh_pilot.api.istio.mesh.v1alpha1 import ConfigSource, MeshConfig
from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettings, ClientTlsSettingsTlSmode
from mesh_pilot.app.config_cluster import config_access
from mesh_pilot.app.config_sources import is_server, source_of
from mesh_pilot.app.identity import Identities
from mesh_pilot.app.settings import Settings, StartError, fault_of, start_errors
from mesh_pilot.identity.trust.callers import is_local
from mesh_pilot.identity.trust.federation import Federation
from mesh_pilot.identity.trust.key_set_fetch import KeySetRef
from mesh_pilot.istio.meaning.wasm import KINDS as EXTENSION_KINDS
from mesh_pilot.mesh.settings.networks import unresolved_hosts
from mesh_pilot.model.config import Config, ConfigError, ConfigKey
from mesh_pilot.model.events import MeshConfigValue
from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.net.fetching import FetchError
from mesh_pilot.net.rpc import CertificateFiles, TlsSource, server_tls
from mesh_pilot.safety.state.database import NAME as STATE_FILE
from mesh_pilot.sources.acme.source import AcmeSource
from mesh_pilot.sources.base.contract import ShortNames, Source
from mesh_pilot.sources.files import NAME as FILES
from mesh_pilot.sources.files import FileSource, file_source
from mesh_pilot.sources.files.mesh import NAME as MESH
from mesh_pilot.sources.files.mesh import load_mesh_config, load_mesh_networks, mesh_source
from mesh_pilot.sources.gateway_hosts.source import GatewayHosts
from mesh_pilot.sources.jwks import KeySetNeed, KeySource, wanted_by
from mesh_pilot.sources.wasm.source import Asked, ModuleSource, asked_by
from mesh_pilot.world import World
from mesh_pilot.xds.mcp.identity import PlaneIdentity, plane_id_of

if TYPE_CHECKING:
    from mesh_pilot.sources.mcp.sink_server import SinkServer

log = structlog.get_logger(scope="bootstrap")

Key = tuple[str, ...]


def source_list(
    settings: Settings, mesh: MeshConfig | None, address: str, cluster: Source | None = None
) -> list[Source]:
    """The sources in order of precedence; ``address``: where gRPC is served. Raises StartError.

    ``mesh`` is the mesh config, which may name sources; None: there is none. ``cluster``: the source of configuration
    in the Kubernetes that holds it.
    """
    sources: list[Source] = [source_of_mesh(settings)]
    credentials = [str(settings.secrets_dir)] if settings.secrets_dir else []
    if settings.config_dirs or credentials:
        sources.append(file_source([str(folder) for folder in settings.config_dirs], credentials=credentials))
    if cluster is not None:
        sources.append(cluster)
    for registry in settings.registries:
        sources += registry.sources()
    return [*sources, *_config_sources(settings, mesh, address)]


def source_of_mesh(settings: Settings) -> FileSource:
    """The source of the mesh config and the networks."""
    files = (_text(settings.mesh_config), _text(settings.networks_config))
    return mesh_source(*files, root_namespace=settings.namespace)


def _config_sources(settings: Settings, mesh: MeshConfig | None, address: str) -> list[Source]:
    """The sources that mesh config and settings name. Raises StartError."""
    named = mesh.config_sources if mesh else []
    configs = [*named, *(_config_source(address, settings.mcp_tls) for address in settings.mcp_servers)]
    identity = _plane_identity(settings, mesh, address)
    with start_errors():
        sources = [source_of(config, identity, settings.revision) for config in configs]
    twice = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
    if twice:
        raise StartError(f"config source {twice[0]} is named twice")
    return sources


def sink_server(settings: Settings, mesh: MeshConfig | None, address: str, identities: Identities) -> SinkServer | None:
    """The dialled source; None without an address. On loopback it is plaintext unless a certificate is named."""
    if not settings.mcp_sink_addr:
        return None
    from mesh_pilot.sources.mcp.sink_server import SinkDoor, SinkServer

    def tls_at(addresses: Sequence[str]) -> TlsSource | None:
        is_named = settings.tls is not None and settings.tls.certificate is not None
        return identities.server_tls() if is_named or not all(map(is_local, addresses)) else None

    door = SinkDoor(identities.config_callers().admit_writer, tls_at)
    return SinkServer(settings.mcp_sink_addr, _plane_identity(settings, mesh, address), door=door)


def _plane_identity(settings: Settings, mesh: MeshConfig | None, address: str) -> PlaneIdentity:
    return PlaneIdentity(
        root_namespace=settings.namespace,
        domain=settings.domain,
        trust_domain=mesh.trust_domain if mesh else "cluster.local",
        plane_id=plane_id_of(address),
    )


@attrs.frozen
class PolicyKeySets:
    """The key sets that the policies of a World name; implements `sources.jwks.KeySetDemand`."""

    world: World

    def wanted_key_sets(self) -> Mapping[KeySetRef, KeySetNeed]:
        kinds = ("RequestAuthentication", "Policy", "MeshPolicy")
        found = [config for kind in kinds for config in self.world.configs_of.peek(kind)]
        return wanted_by([*found, *_old_values(self.world, kinds)])

    def is_complete(self) -> bool:
        return are_others_synced(self.world)


def _old_values(world: World, kinds: Collection[str]) -> list[Config]:
    """The objects of these kinds that some proxies still have, while others have newer ones."""
    rollout = world.rollout.peek(())
    old = (item for each in rollout.changes for item in each.old) if rollout is not None else ()
    return [item for item in old if isinstance(item, Config) and item.key.kind in kinds]


@attrs.frozen
class ExtensionModules:
    """The modules that the extensions of a World ask for; implements `sources.wasm.ModuleDemand`."""

    world: World

    def asked(self) -> Mapping[ConfigKey, Asked]:
        return asked_by(config for kind in EXTENSION_KINDS for config in self.world.configs_of.peek(kind))

    def also_needed(self) -> Iterable[tuple[ConfigKey, Asked]]:
        return asked_by(_old_values(self.world, EXTENSION_KINDS)).items()

    def docker_config(self, ref: ModuleRef) -> bytes | None:
        namespace, name = ref.pull_secret
        if not name:
            return None
        secret = self.world.secrets.peek((namespace, name))
        if secret is None or not secret.docker_config:
            raise FetchError(f"there is no Secret {namespace}/{name} of type kubernetes.io/dockerconfigjson")
        return secret.docker_config

    def is_complete(self) -> bool:
        return are_others_synced(self.world)


def module_folder(settings: Settings, stack: ExitStack) -> Path:
    """The folder of modules: that of the state; without one a folder that goes with the ``stack``."""
    if settings.state is not None:
        return settings.state.folder / "wasm"
    folder = Path(tempfile.gettempdir()) / f"mesh-pilot-wasm-{secrets.token_hex(8)}"
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


@attrs.frozen
class NetworkGatewayHosts:
    """The host names of a World's gateways between networks; implements `sources.gateway_hosts.source.HostDemand`."""

    world: World

    def wanted_hosts(self) -> frozenset[str]:
        return unresolved_hosts(self.world.view)

    def is_complete(self) -> bool:
        return are_others_synced(self.world)


def are_others_synced(world: World) -> bool:
    """True once all sources have synced but those that follow what the others say."""
    followers = {KeySource.name, Federation.name, GatewayHosts.name, ModuleSource.name, AcmeSource.name}
    return set(world.unsynced()) <= followers


class ConfigSourcesWatch:
    """Logs when ``configSources`` of the mesh config are no longer those that are read.

    State: the addresses that are read, and those of the last change that was logged.
    """

    def __init__(self, settings: Settings, mesh: MeshConfig | None) -> None:
        self._is_ours = settings.mesh_config is not None or config_access(settings) is not None
        self._read = mesh.config_sources if mesh else []
        self._logged = self._read

    def published(self, world: World, changed: Collection[Key]) -> None:
        """A revision of the World, and what changed in it."""
        if not self._is_ours or ("mesh",) not in changed:
            return
        now = world.mesh.peek(()).config_sources
        where = next((str(each.origin) for each in world.mesh_settings() if isinstance(each, MeshConfigValue)), "")
        if now == self._logged:
            return
        self._logged = now
        if now == self._read:
            log.info("configSources match the running sources again", where=where)
            return
        log.warning(
            "configSources changed; restart to apply them",
            where=where,
            read=[source.address for source in self._read],
            after_a_restart=[source.address for source in now],
        )


def _config_source(address: str, files: CertificateFiles | None) -> ConfigSource:
    """The source of a flag, as mesh config would name it. The TLS files of flags are for servers only."""
    if files is None or not is_server(address):
        return ConfigSource(address=address)
    tls = ClientTlsSettings(
        mode=ClientTlsSettingsTlSmode.MUTUAL if files.certificate else ClientTlsSettingsTlSmode.SIMPLE,
        client_certificate=_text(files.certificate) or "",
        private_key=_text(files.key) or "",
        ca_certificates=_text(files.trusted) or "",
    )
    return ConfigSource(address=address, tls_settings=tls)


def short_name_domain(settings: Settings, sources: Sequence[Source]) -> str:
    """The domain that bare host names in Istio objects belong to; empty: that of their namespace's services."""
    is_alone = not any(isinstance(source, ShortNames) and source.has_short_names for source in sources)
    domains = (registry.short_name_domain(is_alone=is_alone) for registry in settings.registries)
    return next(filter(None, domains), "")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def check_settings(settings: Settings) -> dict[str, StartError]:
    """Raise StartError for what a source would retry patiently, but which is a mistake at start.

    Returns what may be an outage instead, by source: files that can't be read or are wrong. Without a picture of an
    earlier run in their place, they are mistakes, too; where nothing of an earlier run is there, that is known before
    anything is written.
    """
    with start_errors():
        if settings.tls is not None and settings.tls.certificate:
            server_tls(settings.tls)
        for registry in settings.registries:
            registry.check()
    faults: dict[str, StartError] = {}
    for folder in (*settings.config_dirs, *filter(None, [settings.secrets_dir])):
        try:
            any(folder.iterdir())
        except OSError as error:
            faults.setdefault(FILES, StartError(f"cannot read the folder {folder}: {error.strerror}"))
    for path, load in ((settings.mesh_config, load_mesh_config), (settings.networks_config, load_mesh_networks)):
        if path is not None:
            try:
                load(str(path))
            except ConfigError as error:
                faults.setdefault(MESH, fault_of(error))
    if faults and (settings.state is None or not any(settings.state.folder.glob(f"{STATE_FILE}*"))):
        raise next(iter(faults.values()))
    return faults
