"""The store that a flag names, among the sources that a control plane reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mesh_pilot.config_store.base import ConfigStore, StoreError
from mesh_pilot.config_store.consul import ConsulConfigStore
from mesh_pilot.config_store.folder import FolderStore
from mesh_pilot.config_store.kubernetes import KubernetesConfigStore
from mesh_pilot.sources.base import ConfigHolder, Registry
from mesh_pilot.sources.consul import ConsulRegistry
from mesh_pilot.sources.files import NAME as FILES

CONSUL = "consul://"
KUBERNETES = "kubernetes"


def store_of(text: str, folders: Sequence[Path], registries: Sequence[Registry], cluster: str) -> ConfigStore:
    """The store that ``--config-store`` names. ``cluster``: the source of configuration in a Kubernetes.

    Raises StoreError if no source reads it: what is written would never come into force.
    """
    if text == KUBERNETES:
        holder = next((each for each in registries if isinstance(each, ConfigHolder)), None)
        if holder is None:
            raise StoreError(f"--config-store {text}: no Kubernetes is read; name one with --kubeconfig")
        return KubernetesConfigStore(holder.access, cluster)
    if text.startswith(CONSUL):
        return _consul(text, registries)
    if "://" in text:
        raise StoreError(f"--config-store {text}: must be a folder, {CONSUL}PREFIX or {KUBERNETES}")
    wanted = os.path.realpath(text)
    for folder in folders:
        if os.path.realpath(folder) == wanted:
            return FolderStore(folder, FILES)
    read = ", ".join(map(str, folders)) or "none"
    raise StoreError(f"--config-store {text}: must be one of the folders of --config-dir, which are read ({read})")


def _consul(text: str, registries: Sequence[Registry]) -> ConfigStore:
    prefix = text.removeprefix(CONSUL).strip("/")
    registry = next((each for each in registries if isinstance(each, ConsulRegistry)), None)
    if registry is None:
        raise StoreError(f"--config-store {text}: no Consul is read; name an agent with --consul-server-url")
    own = registry.datacenters[0]
    if not own.config_prefix or own.config_prefix != (prefix or own.config_prefix):
        read = own.config_prefix or "none"
        raise StoreError(f"--config-store {text}: must be the prefix of --consul-config-prefix, which is read ({read})")
    return ConsulConfigStore(own)
