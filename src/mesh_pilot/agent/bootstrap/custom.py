"""A bootstrap that a user merges over ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mesh_pilot.agent.bootstrap.proxy_config import bootstrap_fields, snake
from mesh_pilot.base.suggestions import did_you_mean

RESOLVERS = ("typed_dns_resolver_config", "dns_resolution_config", "use_tcp_for_dns_lookups")
"""The fields by which names are resolved; the control plane then does not say how."""
OWN_RESOLVER = "OWN_DNS_RESOLVER"

KEYS = ("name", "tag_name")
"""Fields by which entries of a list are the same."""


class CustomBootstrapError(ValueError):
    """A file that cannot be merged: one line for users, with its path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"custom bootstrap {path}: {reason}")


def read_custom(path: Path) -> dict[str, Any]:
    """The bootstrap of a file, YAML or JSON. Raises CustomBootstrapError for anything else."""
    import yaml

    try:
        data = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise CustomBootstrapError(path, f"{error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CustomBootstrapError(path, f"this is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, Mapping):
        raise CustomBootstrapError(path, "expected the fields of Envoy's Bootstrap, such as stats_sinks")
    found = {snake(str(name)): value for name, value in data.items()}
    known = bootstrap_fields()
    for name in found:
        if name not in known:
            raise CustomBootstrapError(path, f"Envoy's Bootstrap has no field {name!r}{did_you_mean(name, known)}")
    return found


def customized(bootstrap: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The bootstrap with that of a file merged over it. Raises CustomBootstrapError."""
    return laid_over(bootstrap, read_custom(path))


def laid_over(bootstrap: Mapping[str, Any], custom: Mapping[str, Any]) -> dict[str, Any]:
    """The bootstrap with another merged over it."""
    if any(name in custom for name in RESOLVERS):
        bootstrap = merged(bootstrap, {"node": {"metadata": {OWN_RESOLVER: "true"}}})
    result: dict[str, Any] = merged(bootstrap, custom)
    return result


def merged(base: Any, over: Any) -> Any:
    """``over`` on ``base``: objects are merged, entries of lists that have one name too; other entries are added."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        result = dict(base)
        for key, value in over.items():
            name = key if key in result or snake(str(key)) not in result else snake(str(key))
            result[name] = merged(result[name], value) if name in result else value
        return result
    if _is_list(base) and _is_list(over):
        entries = list(base)
        places = {named: place for place, entry in enumerate(entries) if (named := _name(entry)) is not None}
        for entry in over:
            name = _name(entry)
            place = None if name is None else places.get(name)
            if place is None:
                entries.append(entry)
            else:
                entries[place] = merged(entries[place], entry)
        return entries
    return over


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _name(entry: object) -> tuple[str, object] | None:
    if not isinstance(entry, Mapping):
        return None
    return next(((key, entry[key]) for key in KEYS if isinstance(entry.get(key), str)), None)
