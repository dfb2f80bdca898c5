"""The purposes of files in a folder: objects, settings, and what is for other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading.yaml import load
from mesh_pilot.model.config import ConfigError, Origin


class FilePurpose(StrEnum):
    """The purpose of a file; the values are for messages."""

    OBJECTS = "objects"
    MESH_CONFIG = "MeshConfig"
    MESH_NETWORKS = "MeshNetworks"
    ENVOY_BOOTSTRAP = "a bootstrap of Envoy"
    ENVOY_SDS = "a file of secrets for Envoy (SDS)"
    GRPC_BOOTSTRAP = "a bootstrap of gRPC clients"
    CONSUL_SERVICE = "a service definition for Consul"
    CONSUL_ENTRY = "a config entry of Consul"
    CONSUL_AGENT = "settings of a Consul agent"
    PROXY_SETTINGS = "settings of mesh-pilot proxy"
    PROMETHEUS = "configuration of Prometheus"
    GRAFANA = "a dashboard of Grafana"
    RATE_LIMITS = "configuration of a rate limit server"
    PEOPLE = "people and roles of the web port"
    IAM_POLICY = "an IAM policy of AWS"
    SIGNER = "the CA of --ca-signer, which discovery checks at its start"


_TYPED = re.compile(rb"^(apiVersion|kind):", re.MULTILINE)
"""Matches nearly every file of objects, which saves parsing it twice."""
_SIGNER = re.compile(rb"^kind: *[a-z][A-Za-z]*\s*(#.*)?$", re.MULTILINE)
"""Matches kinds of signers, which begin with a small letter, unlike those of objects."""
_TARGETS = re.compile(rb"""\s*(?:\[\s*\{\s*"(?:targets|labels)"|-\s+(?:targets|labels):)""")
"""Matches Prometheus' lists of targets."""
_MESH_NAMES = frozenset(("mesh", "mesh-config", "mesh_config", "meshconfig"))
_FIELDS: tuple[tuple[FilePurpose, frozenset[str]], ...] = (
    (FilePurpose.GRPC_BOOTSTRAP, frozenset(("xds_servers",))),
    (FilePurpose.ENVOY_BOOTSTRAP, frozenset(("static_resources", "dynamic_resources"))),
    (FilePurpose.ENVOY_SDS, frozenset(("resources",))),
    (FilePurpose.CONSUL_SERVICE, frozenset(("service", "services", "Service", "Services"))),
    (FilePurpose.CONSUL_ENTRY, frozenset(("Kind",))),
    (FilePurpose.CONSUL_AGENT, frozenset(("node_name", "datacenter", "bind_addr", "retry_join"))),
    (FilePurpose.PROMETHEUS, frozenset(("scrape_configs", "groups", "rule_files"))),
    (FilePurpose.GRAFANA, frozenset(("panels", "schemaVersion"))),
    (FilePurpose.RATE_LIMITS, frozenset(("descriptors",))),
    (FilePurpose.PEOPLE, frozenset(("clientId",))),
    (FilePurpose.IAM_POLICY, frozenset(("Statement",))),
)
"""Fields of which one is enough."""


def purpose_of(data: bytes, path: str) -> FilePurpose:
    """The purpose of a file by its content; OBJECTS if unknown, so that the reader of objects reports the problem."""
    if _SIGNER.search(data) and b"apiVersion:" not in data:
        return FilePurpose.SIGNER
    if _TYPED.search(data):
        return FilePurpose.OBJECTS
    if _TARGETS.match(data):
        return FilePurpose.PROMETHEUS
    try:
        first = next(load(data.decode("utf-8-sig"), Origin("files", path)), None)
    except UnicodeDecodeError:
        return FilePurpose.OBJECTS
    if first is None or isinstance(first, ConfigError):
        return FilePurpose.OBJECTS
    return _by_fields(first.data, Path(path).stem)


def _by_fields(fields: Mapping[str, object], name: str) -> FilePurpose:
    names = fields.keys()
    if names & {"pilot", "tls-ca", "label"}:  # before objects: they may have "metadata", too
        return FilePurpose.PROXY_SETTINGS
    if names & {"apiVersion", "kind", "metadata", "spec"}:
        return FilePurpose.OBJECTS
    for role, enough in _FIELDS:
        if names & enough:
            return role
    if names == {"networks"}:
        return FilePurpose.MESH_NETWORKS
    if name.split(".")[0].lower() in _MESH_NAMES or names & descriptor_of(MeshConfig).by_name.keys():
        return FilePurpose.MESH_CONFIG
    return FilePurpose.OBJECTS
