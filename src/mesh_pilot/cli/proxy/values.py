"""Values of settings that are objects: pairs KEY=VALUE, and Istio's ProxyConfig as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


def proxy_config(value: Any) -> Mapping[str, Any]:
    """The ProxyConfig of a text, or as it is. Raises BadParameter."""
    if isinstance(value, Mapping):
        return value
    import yaml

    try:
        found = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise click.BadParameter(f"this is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, Mapping):
        raise click.BadParameter("expected the fields of a ProxyConfig, such as {concurrency: 2}")
    return found
