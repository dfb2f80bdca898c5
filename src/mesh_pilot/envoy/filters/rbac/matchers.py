"""Matchers for the values of policies: ``exact``, ``prefix*``, ``*suffix`` and ``*`` (any text that is not empty)."""

from __future__ import annotations

import ipaddress
import re

from envoy.config.core.v3 import address_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.type.matcher.v3 import metadata_pb2, string_pb2, value_pb2

from mesh_pilot.envoy.core.protobuf import exact, prefix, regex, suffix, uint32

WILDCARD = "*"
NON_EMPTY = ".+"
"""The regular expression for the wildcard alone."""

_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


def text(value: str) -> string_pb2.StringMatcher:
    """The matcher of a value in any of the four forms."""
    if value == WILDCARD:
        return regex(NON_EMPTY)
    if value.startswith(WILDCARD):
        return suffix(value.removeprefix(WILDCARD))
    return prefix(value.removesuffix(WILDCARD)) if value.endswith(WILDCARD) else exact(value)


def header(name: str, value: str, *, ignore_case: bool = False) -> route_components_pb2.HeaderMatcher:
    """The matcher of a request header; ``*`` requires that it is present."""
    if value == WILDCARD:
        return route_components_pb2.HeaderMatcher(name=name, present_match=True)
    matcher = text(value)
    matcher.ignore_case = ignore_case
    return route_components_pb2.HeaderMatcher(name=name, string_match=matcher)


def subnet(value: str) -> address_pb2.CidrRange:
    """An IP address or a CIDR block."""
    network = ipaddress.ip_network(value, strict=False)
    return address_pb2.CidrRange(address_prefix=str(network.network_address), prefix_len=uint32(network.prefixlen))


def metadata(filter_name: str, path: tuple[str, ...], value: value_pb2.ValueMatcher) -> metadata_pb2.MetadataMatcher:
    """The matcher of dynamic metadata that a filter has written."""
    segments = [metadata_pb2.MetadataMatcher.PathSegment(key=key) for key in path]
    return metadata_pb2.MetadataMatcher(filter=filter_name, path=segments, value=value)


def member(matcher: string_pb2.StringMatcher) -> value_pb2.ValueMatcher:
    """The matcher of a list with a matching member."""
    element = value_pb2.ValueMatcher(string_match=matcher)
    return value_pb2.ValueMatcher(list_match=value_pb2.ListMatcher(one_of=element))


def text_or_member(matcher: string_pb2.StringMatcher) -> value_pb2.ValueMatcher:
    """The matcher of a matching text, or of a list with a matching member."""
    alternatives = [member(matcher), value_pb2.ValueMatcher(string_match=matcher)]
    return value_pb2.ValueMatcher(or_match=value_pb2.OrMatcher(value_matchers=alternatives))


def quoted(value: str) -> str:
    """The regular expression that matches exactly this text."""
    return _SPECIAL.sub(r"\\\g<0>", value)


def glob(value: str, star: str = ".*") -> str:
    """The regular expression of a value with wildcards; ``star`` is the expression for each wildcard."""
    return star.join(map(quoted, value.split(WILDCARD)))
