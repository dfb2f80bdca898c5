"""UDP listeners: the clusters of their UDP proxy. Written by ``envoy.filters.udp``, or by a patch."""

from __future__ import annotations

from mesh_pilot.base.reading import as_object, as_objects, as_string
from mesh_pilot.explain.inspection.dump import Message, number_of

UDP_PROXY = ".UdpProxyConfig"

_DENOMINATORS = {"HUNDRED": 100, "TEN_THOUSAND": 10_000, "MILLION": 1_000_000}


def is_udp(listener: Message) -> bool:
    """True for a listener of datagrams."""
    return as_string(listener, "address", "socket_address", "protocol") == "UDP"


def datagram_clusters(listener: Message) -> list[tuple[str, float]]:
    """The clusters of a UDP listener, each with its share of the clients in percent; empty without a UDP proxy."""
    configs = (as_object(each, "typed_config") for each in as_objects(listener, "listener_filters"))
    proxy = next((config for config in configs if as_string(config, "@type").endswith(UDP_PROXY)), None)
    if proxy is None:
        return []
    if cluster := as_string(proxy, "cluster"):
        return [(cluster, 100.0)]
    found, left = [], 100.0
    for choice in as_objects(proxy, "matcher", "matcher_list", "matchers"):
        share = left * _fraction(as_object(choice, "predicate", "single_predicate", "custom_match", "typed_config"))
        found.append((_cluster(as_object(choice, "on_match")), share))
        left -= share
    if last := _cluster(as_object(proxy, "matcher", "on_no_match")):
        found.append((last, left))
    return found


def _fraction(match: Message) -> float:
    value = as_object(match, "runtime_fraction", "default_value")
    denominator = _DENOMINATORS.get(as_string(value, "denominator"), 100)
    return min(1.0, float(number_of(value.get("numerator")) or 0) / denominator)


def _cluster(on_match: Message) -> str:
    return as_string(on_match, "action", "typed_config", "cluster")
