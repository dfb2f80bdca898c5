"""Rules for GlobalRateLimit."""

from __future__ import annotations

import re
from collections.abc import Iterator

import betterproto2

from mesh_pilot.api.meshpilot.policy.v1alpha1 import (
    DescriptorEntry,
    GlobalRateLimit,
    RateLimitDescriptor,
    RateLimitServer,
)
from mesh_pilot.istio.meaning.descriptors import json_name
from mesh_pilot.istio.rules.common import check_match_labels
from mesh_pilot.istio.rules.context import Context, check, check_parts, check_values, error
from mesh_pilot.istio.rules.local_rate_limit import check_gateways, check_match, check_port, check_refusal
from mesh_pilot.istio.rules.names import fqdn_reason, port_reason
from mesh_pilot.istio.rules.values import duration_reason, header_size_reason, header_text_reason, matched_header_reason
from mesh_pilot.model.config import Problem

MAX_CLAIM = 256
"""Characters of a claim with its members: every proxy looks for it in every request."""
MAX_MEMBERS = 16
"""Members within members: Envoy limits the depth of the expression that they become (see ``rules.cel``)."""

_CLAIM = re.compile(r"[^\[\]]+(?:\[[^\[\]]+\])*")


def validate(spec: GlobalRateLimit, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a GlobalRateLimit."""
    yield from check_match_labels(spec.selector)
    yield from check_gateways(spec, context)
    yield from check_parts("spec", spec, _check_server, "service", required=True)
    yield from _check_text("spec.domain", spec.domain)
    if not spec.descriptors:
        yield error("spec.descriptors", "is missing")
    for index, descriptor in enumerate(spec.descriptors):
        yield from _check_descriptor(f"spec.descriptors[{index}]", descriptor)
    yield from check_values("spec", spec, duration_reason, "timeout")
    yield from check_refusal("spec", spec)


def _check_server(path: str, server: RateLimitServer) -> Iterator[Problem]:
    if server.host.startswith("*"):
        yield error(f"{path}.host", "can't have a wildcard: one service is asked")
    else:
        yield from check(f"{path}.host", fqdn_reason(server.host))
    yield from check(f"{path}.port", port_reason(server.port) if server.port else "is missing")


def _check_descriptor(path: str, descriptor: RateLimitDescriptor) -> Iterator[Problem]:
    yield from check_port(path, descriptor.port)
    yield from check_parts(path, descriptor, check_match, "match")
    if not descriptor.entries:
        yield error(f"{path}.entries", "is missing")
    elif descriptor.match is not None and all(entry.value is None for entry in descriptor.entries):
        yield error(f"{path}.match", "needs an entry with a value: by it the server knows requests that match")
    for index, entry in enumerate(descriptor.entries):
        yield from _check_entry(f"{path}.entries[{index}]", entry)


def _check_entry(path: str, entry: DescriptorEntry) -> Iterator[Problem]:
    source, value = betterproto2.which_one_of(entry, "source")
    if value is None:
        yield error(path, "needs one of value, header, claim, path, sourcePrincipal and remoteAddress")
        return
    if entry.key:
        yield from _check_text(f"{path}.key", entry.key)
    here = f"{path}.{json_name(source)}"
    match source:
        case "value":
            yield from _check_text(here, value)
            if not entry.key:
                yield error(f"{path}.key", "is missing: a value needs one")
        case "header":
            yield from check(here, _header_reason(value))
        case "claim":
            yield from check(here, _claim_reason(value))
        case _ if not value:
            yield error(here, "is true, or left out")
        case "remote_address" if entry.key:
            yield error(f"{path}.key", "can't be chosen for remoteAddress: it is remote_address")


def _header_reason(name: str) -> str:
    if name.lower() == ":path":
        return "has the query in it; use path: true"
    return matched_header_reason(name) or header_size_reason(name)


def _claim_reason(claim: str) -> str:
    if len(claim) > MAX_CLAIM:
        return f"has {len(claim)} characters, allowed are {MAX_CLAIM}"
    if claim.count("[") > MAX_MEMBERS:
        return f"has {claim.count('[')} members, allowed are {MAX_MEMBERS}"
    return "" if _CLAIM.fullmatch(claim) else "is not a claim, such as sub, or realm[id] for a member of another"


def _check_text(path: str, text: str) -> Iterator[Problem]:
    yield from check(path, "is missing" if not text else header_size_reason(text) or header_text_reason(text))
