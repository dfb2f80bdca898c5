"""The files of a migration: one object a file, the settings, and credentials."""

from __future__ import annotations

from collections.abc import Mapping

from mesh_pilot.istio.reading.yaml_text import yaml_text
from mesh_pilot.migration.base.record import MadeObject, Migration

CONFIG, SECRETS = "config", "secrets"
MESH_FILE, NETWORKS_FILE, REPORT_FILE = "mesh.yaml", "networks.yaml", "MIGRATION.md"

CLUSTER_SCOPED = "_cluster"
"""The folder of objects without a namespace; no namespace is called so."""

_GATEWAY_API = "gateway.networking.k8s.io"
_LONGEST = 200


def files_of(migration: Migration) -> Mapping[str, bytes]:
    """The content of each file but the report, by its path in the folder, sorted."""
    found: dict[str, bytes] = {}
    for made in migration.objects:
        found[path_of(made)] = yaml_text([made.document]).encode()
    if migration.mesh is not None:
        found[MESH_FILE] = yaml_text([migration.mesh]).encode()
    if migration.networks is not None:
        found[NETWORKS_FILE] = yaml_text([migration.networks]).encode()
    for credential in migration.credentials:
        for part, value in credential.parts.items():
            found[f"{SECRETS}/{credential.namespace}/{credential.name}/{part}"] = value
    return dict(sorted(found.items()))


def path_of(made: MadeObject) -> str:
    """The file of an object: ``config/shop/VirtualService-reviews.yaml``."""
    kind, namespace, name = made.key
    kind, _, group = kind.partition(".")
    if group == _GATEWAY_API and kind == "Gateway":
        kind = "KubernetesGateway"  # two groups have a Gateway
    short = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{len(name)}"
    return f"{CONFIG}/{namespace or CLUSTER_SCOPED}/{kind}-{short}.yaml"


def is_secret(path: str) -> bool:
    """True for files that only their owner may read."""
    return path.startswith(f"{SECRETS}/")
