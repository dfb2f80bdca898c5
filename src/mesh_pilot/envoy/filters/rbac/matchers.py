"""How a value of a policy is compared: ``exact``, ``prefix*``, ``*suffix`` and ``*`` (anything but nothing)."""

from __future__ import annotations

import ipaddress
import re

from envoy.config.core.v3 import address_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.type.matcher.v3 import metadata_pb2, string_pb2, value_pb2

from mesh_pilot.envoy.core.protobuf import exact, prefix, regex, suffix, uint32

ANY = "*"
ANYTHING = ".+"

_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


def text(value: str) -> string_pb2.StringMatcher:
    """A value in one of the four forms."""
    if value == ANY:
        return regex(ANYTHING)
    if value.startswith(ANY):
        return suffix(value.removeprefix(ANY))
    return prefix(value.removesuffix(ANY)) if value.endswith(ANY) else exact(value)


def header(name: str, value: str, *, ignore_case: bool = False) -> route_components_pb2.HeaderMatcher:
    """A request header; ``*`` means that it is there."""
    if value == ANY:
        return route_components_pb2.HeaderMatcher(name=name, present_match=True)
    matcher = text(value)
    matcher.ignore_case = ignore_case
    return route_components_pb2.HeaderMatcher(name=name, string_match=matcher)


def subnet(value: str) -> address_pb2.CidrRange:
    """An address, or a block of them."""
    network = ipaddress.ip_network(value, strict=False)
    return address_pb2.CidrRange(address_prefix=str(network.network_address), prefix_len=uint32(network.prefixlen))


def metadata(filter_name: str, path: tuple[str, ...], value: value_pb2.ValueMatcher) -> metadata_pb2.MetadataMatcher:
    """What another filter said of the request."""
    segments = [metadata_pb2.MetadataMatcher.PathSegment(key=key) for key in path]
    return metadata_pb2.MetadataMatcher(filter=filter_name, path=segments, value=value)


def member(matcher: string_pb2.StringMatcher) -> value_pb2.ValueMatcher:
    """A list that has a member like this."""
    one = value_pb2.ValueMatcher(string_match=matcher)
    return value_pb2.ValueMatcher(list_match=value_pb2.ListMatcher(one_of=one))


def text_or_member(matcher: string_pb2.StringMatcher) -> value_pb2.ValueMatcher:
    """A text like this, or a list that has one."""
    alternatives = [value_pb2.ValueMatcher(string_match=matcher), member(matcher)]
    return value_pb2.ValueMatcher(or_match=value_pb2.OrMatcher(value_matchers=alternatives))


def quoted(value: str) -> str:
    """A text as an expression that matches just it."""
    return _SPECIAL.sub(r"\\\g<0>", value)


def glob(value: str, star: str = ".*") -> str:
    """A value as an expression, with what each of its ``*`` may stand for."""
    return star.join(map(quoted, value.split(ANY)))
