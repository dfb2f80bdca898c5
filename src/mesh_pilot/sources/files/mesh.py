"""The mesh-wide settings from files: ``mesh.yaml`` (MeshConfig) and the networks file (MeshNetworks), watched.

At start a wrong file is fatal, and the caller's to report: `load_mesh_config` and `load_mesh_networks` raise. Once the
source runs, a wrong or vanished file is refused and the last good one is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.istio.reading.mesh import ROOT_NAMESPACE, decode_mesh, decode_networks
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import ConfigError, Origin, Problem
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue
from mesh_pilot.sources.files.roots import FileRoot, Root, read_file
from mesh_pilot.sources.files.source import FileSource
from mesh_pilot.sources.files.waiting import FileTiming

NAME = "mesh"
"""Name of the source of both files."""

T = TypeVar("T")


def load_mesh_config(path: str) -> MeshConfig:
    """The MeshConfig in a file, over the defaults. Raises ConfigError, also where the file can't be read."""
    config: MeshConfig = _load(path, mesh_config).config
    return config


def load_mesh_networks(path: str) -> MeshNetworks:
    """The MeshNetworks in a file. Raises ConfigError, also where the file can't be read."""
    networks: MeshNetworks = _load(path, mesh_networks).networks
    return networks


def mesh_source(
    mesh_config_path: str | None = None,
    networks_path: str | None = None,
    *,
    root_namespace: str = ROOT_NAMESPACE,
    timing: FileTiming | None = None,
    poll: bool = False,
) -> FileSource:
    """The source of the mesh-wide settings, for the files that are given; says nothing of the others.

    ``root_namespace`` holds where the file names none.
    """
    roots: list[Root] = []
    if mesh_config_path is not None:
        decode = partial(mesh_config, root_namespace=root_namespace)
        settings = f"by default of namespace {root_namespace}"
        roots.append(FileRoot(mesh_config_path, NAME, decode, ("mesh",), settings))
    if networks_path is not None:
        roots.append(FileRoot(networks_path, NAME, mesh_networks, ("networks",)))
    return FileSource(NAME, roots, timing=timing, poll=poll)


def mesh_config(
    text: str, origin: Origin, root_namespace: str = ROOT_NAMESPACE, under: MeshConfig | None = None
) -> MeshConfigValue:
    """The item that the text of a ``mesh.yaml`` gives; ``under``: see `decode_mesh`. Raises ConfigError."""
    warnings: list[Problem] = []
    decode = partial(decode_mesh, root_namespace=root_namespace, under=under, warnings=warnings)
    return MeshConfigValue(_decode(text, origin, decode), origin, tuple(warnings))


def mesh_networks(text: str, origin: Origin) -> MeshNetworksValue:
    """The item that the text of a networks file gives. Raises ConfigError."""
    warnings: list[Problem] = []
    decode = partial(decode_networks, warnings=warnings)
    return MeshNetworksValue(_decode(text, origin, decode), origin, tuple(warnings))


def _decode(text: str, origin: Origin, decode: Callable[..., T]) -> T:
    documents: list[Document] = []
    for document in load(text, origin):
        if isinstance(document, ConfigError):
            raise document
        documents.append(document)
    if len(documents) > 1:
        line = documents[1].line
        problem = Problem("", "a second document: only one is expected", line=line)
        raise ConfigError(attrs.evolve(origin, line=line), None, (problem,))
    if not documents:
        return decode(None, origin=origin)
    try:
        return decode(documents[0].data, origin=origin, line_of=documents[0].line_of)
    except ConfigError as error:
        line = error.problems[0].line
        raise ConfigError(attrs.evolve(origin, line=line), None, error.problems) from None


def _load(path: str, read: Callable[[str, Origin], T]) -> T:
    origin = Origin(NAME, path)
    try:
        return read(read_file(Path(path)).decode("utf-8-sig"), origin)
    except OSError as error:
        reason = f"can't be read: {error.strerror or error}"
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    raise ConfigError(origin, None, (Problem("", reason),))
