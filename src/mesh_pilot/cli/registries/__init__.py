"""The registries that ``mesh-pilot discovery`` can read: a module with the flags of each, and one table of them.

What reads a registry is imported only if its flags name one: ``--help`` and completion load none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh_pilot.cli.registries import consul

if TYPE_CHECKING:
    from mesh_pilot.sources.base import Registry


class RegistryOptions(NamedTuple):
    """The flags of one kind of registry."""

    title: str
    """Of their section in the help."""
    prefix: str
    """The prefix of all of them: ``--consul-``."""
    flags: Sequence[tuple[str, Mapping[str, Any]]]
    """Each flag, with the attributes of its click option."""
    read: Callable[[Mapping[str, Any], Mapping[str, str]], Registry | None]
    """The registry that flags and environment name, if any. Raises UsageError."""
    needed: str
    """The hint for a command line that names nothing to serve: ``a Consul with --consul-server-url``."""


REGISTRIES: Sequence[RegistryOptions] = (
    RegistryOptions("Consul", "--consul-", consul.FLAGS, consul.consul_registry, "a Consul with --consul-server-url"),
)
"""In order of precedence."""


def take_registries(options: MutableMapping[str, Any], environment: Mapping[str, str]) -> tuple[Registry, ...]:
    """The registries that were named; their options are taken out of those of the command. Raises UsageError."""
    found = []
    for registry in REGISTRIES:
        prefix = registry.prefix.removeprefix("--").replace("-", "_")
        flags = {name: options.pop(name) for name in list(options) if name.startswith(prefix)}
        found.append(registry.read(flags, environment))
    return tuple(filter(None, found))
