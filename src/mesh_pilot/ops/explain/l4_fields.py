"""The ``tls`` or ``tcp`` rule of a VirtualService that declares a filter chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mesh_pilot.mesh.routing.l4 import MatchContext
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.model.config import Config
from mesh_pilot.world import View


def l4_field(
    view: View, configs: Iterable[Config], conditions: MatchContext, chain: dict[str, Any], hosts: Sequence[str]
) -> FieldOfObject | None:
    """The first match that applies, for the chain's server names and subnets, whose rule leads to these hosts.

    ``chain``: ``server_names`` and ``has_subnets`` of its match.
    """
    for config in configs:
        for path, rule, match in _matches(config):
            if match is not None:
                if not conditions.allow(view, match, config):
                    continue
                names = {name.lower() for name in getattr(match, "sni_hosts", ())}
                # A tcp rule of a gateway's TLS server has the server's names.
                if names and names != {str(name).lower() for name in chain["server_names"]}:
                    continue
                if match.destination_subnets and not chain["has_subnets"]:
                    continue
            to = {
                view.destination_host(r.destination.host, config.namespace)
                for r in rule.route
                if r.destination is not None
            }
            if to.issuperset(hosts):
                return FieldOfObject(config.key, path)
    return None


def _matches(config: Config) -> Iterator[tuple[str, Any, Any]]:
    """(field, rule, match) of each match; None for a rule without matches, which takes every connection."""
    for kind in ("tls", "tcp"):
        for index, rule in enumerate(getattr(config.spec, kind)):
            field = f"spec.{kind}[{index}]"
            for number, match in enumerate(rule.match):
                yield f"{field}.match[{number}]", rule, match
            if not rule.match:
                yield field, rule, None
