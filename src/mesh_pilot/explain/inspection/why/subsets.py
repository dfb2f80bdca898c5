"""Subsets of a cluster by metadata, chosen as Envoy does (its documentation: "Load balancer subsets")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mesh_pilot.explain.inspection.why.matchers import Message

NO_FALLBACK, ANY, DEFAULT, KEYS = "NO_FALLBACK", "ANY_ENDPOINT", "DEFAULT_SUBSET", "KEYS_SUBSET"


def in_subset(cluster: Message, labels: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> list[bool]:
    """True for each endpoint that is, by its metadata ``envoy.lb``, in the subset that a route's metadata match means.

    A cluster without selectors has no subsets: every endpoint is in. A selector must have exactly the keys that
    are wanted; where it, or an endpoint for it, is missing, the fallback decides.
    """
    # The order is that of Envoy's documentation ("Load balancer subsets"): the selector with exactly the wanted keys,
    # its own fallback, and only then the cluster's. KEYS_SUBSET begins again with fewer keys, so it ends.
    config = cluster.get("lb_subset_config", {})
    selectors = {frozenset(each.get("keys", ())): each for each in config.get("subset_selectors", ())}
    if not selectors:
        return [True] * len(labels)
    selector = selectors.get(frozenset(wanted)) if wanted else None
    if selector is not None:
        found = [_has(own, wanted, config) for own in labels]
        if any(found):
            return found
    own_policy = str(selector.get("fallback_policy", "NOT_DEFINED")) if selector is not None else "NOT_DEFINED"
    if selector is not None and own_policy == KEYS:
        kept = set(selector.get("fallback_keys_subset", ()))
        if kept < wanted.keys():
            return in_subset(cluster, labels, {key: value for key, value in wanted.items() if key in kept})
    policy = (
        own_policy if own_policy in (NO_FALLBACK, ANY, DEFAULT) else str(config.get("fallback_policy", NO_FALLBACK))
    )
    if policy == ANY:
        return [True] * len(labels)
    return [policy == DEFAULT and _has(own, config.get("default_subset", {}), config) for own in labels]


def _has(own: Mapping[str, Any], wanted: Mapping[str, Any], config: Message) -> bool:
    any_of_list = config.get("list_as_any") is True

    def is_value(held: Any, value: Any) -> bool:
        return value in held if any_of_list and isinstance(held, list) else bool(held == value)

    return all(key in own and is_value(own[key], value) for key, value in wanted.items())
