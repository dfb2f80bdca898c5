"""The registries that ``mesh-pilot discovery`` can read: a module with the flags of each, and one table of them.

What reads a registry is imported only if its flags name one: ``--help`` and completion load none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs
import click

from mesh_pilot.cli.discovery.registries.consul import ConsulFlags
from mesh_pilot.cli.discovery.registries.kubernetes import KubernetesFlags
from mesh_pilot.model.flags import built, flag

if TYPE_CHECKING:
    from mesh_pilot.app.settings import Settings
    from mesh_pilot.sources.base.contract import Registry


class RegistryFlags(Protocol):
    """A class of settings that say where a registry is."""

    def registry(self, environment: Mapping[str, str], is_named: bool | None, mesh: Settings) -> Registry | None:
        """The registry that flags and environment name, if any. Raises UsageError.

        ``is_named``: whether ``--registries`` names it; None without that flag. ``mesh`` has the domain and namespace.
        """


class RegistryOptions(NamedTuple):
    """One kind of registry."""

    title: str
    """The name in ``--registries``."""
    flags: type[RegistryFlags]
    needed: str
    """The hint for a command line that names nothing to serve: ``a Consul with --consul-server-url``."""


REGISTRIES: Sequence[RegistryOptions] = (
    RegistryOptions("Consul", ConsulFlags, "a Consul with --consul-server-url"),
    RegistryOptions("Kubernetes", KubernetesFlags, "a Kubernetes with --kubeconfig or --registries Kubernetes"),
)
"""In order of precedence, unless ``--registries`` has another."""


def names(text: str) -> tuple[str, ...]:
    """Names of registries, separated by commas, in any case. Raises ValueError."""
    known = {registry.title.lower(): registry.title for registry in REGISTRIES}
    found = text.replace(",", " ").split()
    for name in found:
        if name.lower() not in known:
            raise ValueError(f"{name!r} is not a registry: {', '.join(known.values())}")
    return tuple(dict.fromkeys(known[name.lower()] for name in found))


@attrs.frozen
class RegistryOrder:
    """Which registries are read, and which wins."""

    registries: tuple[str, ...] = flag(
        "--registries",
        section="Registries",
        kind=names,
        text="",
        default=(),
        adds_up=True,
        metavar="NAME,...",
        common=True,
        help="Registries to read, first those that win: Kubernetes,Consul.  [default: those that flags name]",
        doc="Registries to read, first those that win: `Kubernetes,Consul`.",
    )


def registries_of(values: Mapping[str, Any], mesh: Settings, environment: Mapping[str, str]) -> tuple[Registry, ...]:
    """The registries that the values of flags name. Raises UsageError."""
    named = built(RegistryOrder, values).registries
    found: dict[str, Registry] = {}
    for registry in REGISTRIES:
        is_named = registry.title in named if named else None
        read = built(registry.flags, values).registry(environment, is_named, mesh)
        if read is not None:
            found[registry.title] = read
        elif is_named:
            raise click.UsageError(f"--registries names {registry.title}: name {registry.needed}")
    order = {name: rank for rank, name in enumerate(named)}
    return tuple(found[name] for name in sorted(found, key=lambda name: order.get(name, len(order))))
