"""The sources that settings and mesh config name, in the order in which they win. May import: ``settings`` and down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import structlog

from mesh_pilot.api.istio.mesh.v1alpha1 import ConfigSource
from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettings, ClientTlsSettingsTlSmode
from mesh_pilot.mcp.identity import PlaneIdentity, plane_id_of
from mesh_pilot.rpc import CertificateFiles, server_tls
from mesh_pilot.settings import Settings, StartError, start_errors
from mesh_pilot.sources.base import Source
from mesh_pilot.sources.config_sources import source_of
from mesh_pilot.sources.consul import check_files, consul_sources
from mesh_pilot.sources.files import file_source
from mesh_pilot.sources.files.mesh import load_mesh_config, load_mesh_networks, mesh_source
from mesh_pilot.sources.mcp.sink_server import SinkServer
from mesh_pilot.world import World

log = structlog.get_logger(scope="bootstrap")

Key = tuple[str, ...]


def source_list(settings: Settings, address: str) -> list[Source]:
    """The sources in the order in which they win; ``address``: where gRPC is served."""
    files = (_text(settings.mesh_config), _text(settings.networks_config))
    sources: list[Source] = [mesh_source(*files, root_namespace=settings.namespace)]
    credentials = [str(settings.secrets_dir)] if settings.secrets_dir else []
    if settings.config_dirs or credentials:
        sources.append(file_source([str(folder) for folder in settings.config_dirs], credentials=credentials))
    sources += consul_sources(settings.consul)
    return [*sources, *_config_sources(settings, address)]


def _config_sources(settings: Settings, address: str) -> list[Source]:
    """The sources that mesh config and settings name. Raises StartError."""
    mesh = load_mesh_config(str(settings.mesh_config)) if settings.mesh_config else None
    named = mesh.config_sources if mesh else []
    configs = [*named, *(_config_source(address, settings.mcp_tls) for address in settings.mcp_servers)]
    trust_domain = mesh.trust_domain if mesh else "cluster.local"
    identity = PlaneIdentity(
        root_namespace=settings.namespace,
        domain=settings.domain,
        trust_domain=trust_domain,
        plane_id=plane_id_of(address),
    )
    with start_errors():
        sources = [source_of(config, identity) for config in configs]
        if settings.mcp_sink_addr:
            sources.append(
                SinkServer(
                    settings.mcp_sink_addr,
                    identity,
                    tls=server_tls(settings.tls) if settings.tls is not None else None,
                )
            )
    twice = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
    if twice:
        raise StartError(f"config source {twice[0]} is named twice")
    return sources


class ConfigSourcesWatch:
    """Tells when ``configSources`` of the mesh config's file are no longer those that are read.

    State: those that were last told of.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = settings.mesh_config
        self._read = load_mesh_config(str(settings.mesh_config)).config_sources if settings.mesh_config else []
        self._told = self._read

    def published(self, world: World, changed: Collection[Key]) -> None:
        """A revision of the World, and what changed in it."""
        if self._path is None or ("mesh",) not in changed:
            return
        now = world.mesh.peek(()).config_sources
        if now == self._told:
            return
        self._told = now
        if now == self._read:
            log.info("configSources match the running sources again", where=str(self._path))
            return
        log.warning(
            "configSources changed; restart to apply them",
            where=str(self._path),
            read=[source.address for source in self._read],
            after_a_restart=[source.address for source in now],
        )


def _config_source(address: str, files: CertificateFiles | None) -> ConfigSource:
    """A source of a flag, as mesh config would name it. Only servers are connected to with the files of flags."""
    if files is None or address.startswith(("fs:", "k8s:")):
        return ConfigSource(address=address)
    tls = ClientTlsSettings(
        mode=ClientTlsSettingsTlSmode.MUTUAL if files.certificate else ClientTlsSettingsTlSmode.SIMPLE,
        client_certificate=_text(files.certificate) or "",
        private_key=_text(files.key) or "",
        ca_certificates=_text(files.trusted) or "",
    )
    return ConfigSource(address=address, tls_settings=tls)


def short_names_in(settings: Settings, sources: Sequence[Source]) -> str:
    """The domain that bare names in Istio objects belong to; empty: that of their namespace's services."""
    wanted = settings.consul_short_names
    if wanted is None:
        wanted = not any(source.name.startswith("k8s:") for source in sources)
    return f"service.{settings.consul[0].domain}" if settings.consul and wanted else ""


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def check_settings(settings: Settings) -> None:
    """Raise StartError for what a source would wait for patiently, but which at start is a mistake."""
    for folder in (*settings.config_dirs, *filter(None, [settings.secrets_dir])):
        try:
            any(folder.iterdir())
        except OSError as error:
            raise StartError(f"cannot read the folder {folder}: {error.strerror}") from error
    with start_errors():
        if settings.mesh_config is not None:
            load_mesh_config(str(settings.mesh_config))
        if settings.networks_config is not None:
            load_mesh_networks(str(settings.networks_config))
        if settings.tls is not None:
            server_tls(settings.tls)
        for datacenter in settings.consul:
            check_files(datacenter.agent)
