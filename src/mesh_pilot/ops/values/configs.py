"""Objects as they are read, as plain values."""

from __future__ import annotations

from mesh_pilot.istio.kinds import written_kind
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config
from mesh_pilot.model.json import Json


def show_config(config: Config) -> Json:
    """A config as in a file, with its origin."""
    metadata: dict[str, Json] = {"name": config.name, "namespace": config.namespace}
    if config.labels:
        metadata["labels"] = dict(config.labels)
    if config.annotations:
        metadata["annotations"] = dict(config.annotations)
    return {
        "apiVersion": config.api_version,
        "kind": written_kind(config.key.kind),
        "metadata": metadata,
        "spec": to_json(config.spec),
        "origin": str(config.origin),
    }
