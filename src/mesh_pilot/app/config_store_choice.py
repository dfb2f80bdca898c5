"""The store that a flag names, among the sources that a control plane reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mesh_pilot.app.config_cluster import config_holder
from mesh_pilot.sources.base.contract import Registry
from mesh_pilot.sources.config_store.base import ConfigStore, ConfigStoreError
from mesh_pilot.sources.config_store.folder import ConfigFolder
from mesh_pilot.sources.files import NAME as FILES

CONSUL = "consul://"
KUBERNETES = "kubernetes"


def store_of(text: str, folders: Sequence[Path], registries: Sequence[Registry], cluster: str) -> ConfigStore:
    """The store that ``--config-store`` names. ``cluster``: the source of configuration in a Kubernetes.

    Raises ConfigStoreError if no source reads it: what is written would never come into force.
    """
    if text == KUBERNETES:
        from mesh_pilot.kubernetes.stores.config import KubernetesObjects

        holder = config_holder(registries)
        if holder is None:
            raise ConfigStoreError(f"--config-store {text}: no Kubernetes is read; name one with --kubeconfig")
        return KubernetesObjects(holder.access, cluster)
    if text.startswith(CONSUL):
        return _consul(text, registries)
    if "://" in text:
        raise ConfigStoreError(f"--config-store {text}: must be a folder, {CONSUL}PREFIX or {KUBERNETES}")
    wanted = os.path.realpath(text)
    for folder in folders:
        if os.path.realpath(folder) == wanted:
            return ConfigFolder(folder, FILES)
    read = ", ".join(map(str, folders)) or "none"
    raise ConfigStoreError(
        f"--config-store {text}: must be one of the folders of --config-dir, which are read ({read})"
    )


def _consul(text: str, registries: Sequence[Registry]) -> ConfigStore:
    from mesh_pilot.consul.source import ConsulRegistry
    from mesh_pilot.consul.stores.config import ConsulConfigKeys

    prefix = text.removeprefix(CONSUL).strip("/")
    registry = next((each for each in registries if isinstance(each, ConsulRegistry)), None)
    if registry is None:
        raise ConfigStoreError(f"--config-store {text}: no Consul is read; name an agent with --consul-server-url")
    own = registry.datacenters[0]
    if not own.config_prefix or own.config_prefix != (prefix or own.config_prefix):
        read = own.config_prefix or "none"
        raise ConfigStoreError(
            f"--config-store {text}: must be the prefix of --consul-config-prefix, which is read ({read})"
        )
    return ConsulConfigKeys(own)
