"""The registries that ``mesh-pilot discovery`` can read: a module with the flags of each, and one table of them.

What reads a registry is imported only if its flags name one: ``--help`` and completion load none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mesh_pilot.cli.options import FlagType, ListOption, words
from mesh_pilot.cli.registries import consul, kubernetes

if TYPE_CHECKING:
    from mesh_pilot.sources.base.contract import Registry


class RegistryOptions(NamedTuple):
    """The flags of one kind of registry."""

    title: str
    """Of their section in the help, and its name in ``--registries``."""
    flags: Sequence[tuple[str, Mapping[str, Any]]]
    """Each flag, with the attributes of its click option."""
    read: Callable[[Mapping[str, Any], Mapping[str, str], bool | None], Registry | None]
    """The registry that flags and environment name, if any. Raises UsageError.

    The last argument: whether ``--registries`` names it; None without that flag."""
    needed: str
    """The hint for a command line that names nothing to serve: ``a Consul with --consul-server-url``."""

    @property
    def names(self) -> Sequence[str]:
        """The first spelling of each flag."""
        return [declared.split()[0].partition("/")[0] for declared, _ in self.flags]


REGISTRIES: Sequence[RegistryOptions] = (
    RegistryOptions("Consul", consul.FLAGS, consul.consul_registry, "a Consul with --consul-server-url"),
    RegistryOptions(
        "Kubernetes",
        kubernetes.FLAGS,
        kubernetes.kubernetes_registry,
        "a Kubernetes with --kubeconfig or --registries Kubernetes",
    ),
)
"""In order of precedence, unless ``--registries`` has another."""

SHARED = ("domain", "namespace")
"""Settings of the mesh that registries read, too."""


@FlagType
def names(text: str) -> tuple[str, ...]:
    """Names of registries, separated by commas, in any case."""
    known = {registry.title.lower(): registry.title for registry in REGISTRIES}
    found = words(text)
    for name in found:
        if name.lower() not in known:
            raise click.BadParameter(f"{name!r} is no registry: {', '.join(known.values())}")
    return tuple(dict.fromkeys(known[name.lower()] for name in found))


FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--registries",
        {
            "cls": ListOption,
            "type": names,
            "default": "",
            "metavar": "NAME,...",
            "help": "Registries to read, first those that win: Kubernetes,Consul.  [default: those that flags name]",
        },
    ),
)


def take_registries(options: MutableMapping[str, Any], environment: Mapping[str, str]) -> tuple[Registry, ...]:
    """The registries that were named; their options are taken out of those of the command. Raises UsageError."""
    named: tuple[str, ...] = options.pop("registries")
    shared = {name: options[name] for name in SHARED}
    found: dict[str, Registry] = {}
    for registry in REGISTRIES:
        settings = [name.removeprefix("--").replace("-", "_") for name in registry.names]
        flags = {**shared, **{name: options.pop(name) for name in settings}}
        is_named = registry.title in named if named else None
        read = registry.read(flags, environment, is_named)
        if read is not None:
            found[registry.title] = read
        elif is_named:
            raise click.UsageError(f"--registries names {registry.title}: name {registry.needed}")
    order = {name: rank for rank, name in enumerate(named)}
    return tuple(found[name] for name in sorted(found, key=lambda name: order.get(name, len(order))))
