"""What a YAML or JSON file in a folder of samples is, where it is not objects of the Istio API.

A folder that one works in also holds ``mesh.yaml``, the bootstraps of Envoys and gRPC clients, and definitions of
services for Consul. They have no ``apiVersion`` and ``kind``, and are recognised by their fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.config.descriptors import descriptor_of
from mesh_pilot.config.yaml import load
from mesh_pilot.model.config import ConfigError, Origin


class Role(StrEnum):
    """What a file is for; the values are how it is called."""

    OBJECTS = "objects"
    MESH_CONFIG = "MeshConfig"
    MESH_NETWORKS = "MeshNetworks"
    ENVOY_BOOTSTRAP = "a bootstrap of Envoy"
    ENVOY_SDS = "a file of secrets for Envoy (SDS)"
    GRPC_BOOTSTRAP = "a bootstrap of gRPC clients"
    CONSUL_SERVICE = "a service definition for Consul"


_TYPED = re.compile(rb"^(apiVersion|kind):", re.MULTILINE)
"""What nearly every file of objects has, to be told without reading it twice."""
_MESH_NAMES = frozenset(("mesh", "mesh-config", "mesh_config", "meshconfig"))
_FIELDS: tuple[tuple[Role, frozenset[str]], ...] = (
    (Role.GRPC_BOOTSTRAP, frozenset(("xds_servers",))),
    (Role.ENVOY_BOOTSTRAP, frozenset(("static_resources", "dynamic_resources"))),
    (Role.ENVOY_SDS, frozenset(("resources",))),
    (Role.CONSUL_SERVICE, frozenset(("service", "services", "Service", "Services"))),
)
"""Fields of which one is enough."""


def role_of(data: bytes, path: str) -> Role:
    """What a file is by what it says; OBJECTS where that can't be told: the reader of objects says what is wrong."""
    if _TYPED.search(data):
        return Role.OBJECTS
    try:
        first = next(load(data.decode("utf-8-sig"), Origin("files", path)), None)
    except UnicodeDecodeError:
        return Role.OBJECTS
    if first is None or isinstance(first, ConfigError):
        return Role.OBJECTS
    return _by_fields(first.data, Path(path).stem)


def _by_fields(fields: Mapping[str, object], name: str) -> Role:
    names = fields.keys()
    if names & {"apiVersion", "kind", "metadata", "spec"}:
        return Role.OBJECTS
    for role, enough in _FIELDS:
        if names & enough:
            return role
    if names == {"networks"}:
        return Role.MESH_NETWORKS
    if name.split(".")[0].lower() in _MESH_NAMES or names & descriptor_of(MeshConfig).by_name.keys():
        return Role.MESH_CONFIG
    return Role.OBJECTS
