"""Rules that objects of the Gateway API share: names, hosts, references, selectors, durations.

They are those of the published CRDs, because files and Consul have no API server in front.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from mesh_pilot.api.k8s.io.gateway_api.v1 import LabelSelector
from mesh_pilot.istio.meaning.durations import read_duration
from mesh_pilot.istio.rules.context import check, error
from mesh_pilot.istio.rules.names import label_key_reason, label_value_reason
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import is_ip

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_KIND = re.compile(r"[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?")
_DURATION = re.compile(r"([0-9]{1,5}(h|m|s|ms)){1,4}")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class Reference(Protocol):
    """A reference of any type; those of some types have no namespace, section or port."""

    @property
    def group(self) -> str | None: ...
    @property
    def kind(self) -> str | None: ...
    @property
    def name(self) -> str: ...


def check_count(path: str, items: Collection[object], most: int, *, least: int = 0) -> Iterator[Problem]:
    if len(items) < least:
        yield error(path, "is missing: at least one is required")
    elif len(items) > most:
        yield error(path, f"has {len(items)} entries; at most {most} are allowed")


def check_one_of(path: str, value: str | None, allowed: Sequence[str], *, required: bool = False) -> Iterator[Problem]:
    if not value and (required or value is not None):
        yield error(path, f"is missing; one of {', '.join(allowed)}" if value is None or required else "is empty")
    elif value and value not in allowed:
        yield error(path, f'unknown value "{value}"; allowed: {", ".join(allowed)}')


def subdomain_reason(text: str, what: str = "name", *, longest: int = 253) -> str:
    """The fault in a name of lower-case DNS labels between dots."""
    if not text:
        return "is missing"
    if len(text) > longest:
        return f'"{text[:40]}..." is longer than {longest} characters'
    if _SUBDOMAIN.fullmatch(text):
        return ""
    return (
        f'"{text}" is not a {what}: lower case letters, digits, "-" and ".", each part starting and ending with a '
        "letter or digit"
    )


def hostname_reason(text: str, *, wildcard: bool) -> str:
    """The fault in a host of a listener or route: not an IP address; `wildcard`: its first label may be ``*``."""
    if is_ip(text):
        return f'"{text}" is an IP address; only host names are allowed'
    return subdomain_reason(text.removeprefix("*.") if wildcard else text, "host name", longest=253 - 2 * wildcard)


def check_hostnames(path: str, hostnames: Sequence[str], most: int) -> Iterator[Problem]:
    yield from check_count(path, hostnames, most)
    for index, host in enumerate(hostnames):
        yield from check(f"{path}[{index}]", hostname_reason(host, wildcard=True))


def check_group(path: str, group: str | None, *, required: bool = False) -> Iterator[Problem]:
    if group is None and required:
        yield error(path, 'is missing; "" is the core group')
    elif group:
        yield from check(path, subdomain_reason(group, "group"))


def check_kind(path: str, kind: str | None, *, required: bool = False) -> Iterator[Problem]:
    if not kind and (required or kind is not None):
        yield error(path, "is missing")
    elif kind and (len(kind) > 63 or not _KIND.fullmatch(kind)):
        yield error(path, f'"{kind[:80]}" is not a kind: letters, digits and "-", at most 63')


def check_name(path: str, name: str) -> Iterator[Problem]:
    if not name:
        yield error(path, "is missing")
    elif len(name) > 253:
        yield error(path, f'"{name[:40]}..." is longer than 253 characters')


def check_namespace(path: str, namespace: str | None) -> Iterator[Problem]:
    if namespace is not None and (len(namespace) > 63 or not _NAMESPACE.fullmatch(namespace)):
        yield error(path, f'"{namespace[:80]}" is not a namespace: lower case letters, digits and "-", at most 63')


def check_section(path: str, section: str | None) -> Iterator[Problem]:
    if section is not None:
        yield from check(path, subdomain_reason(section))


def check_port(path: str, port: int | None) -> Iterator[Problem]:
    if port is not None and not 1 <= port <= 65535:
        yield error(path, f"{port} is not a port; 1 to 65535")


def check_reference(path: str, found: Reference, *, required: bool = False) -> Iterator[Problem]:
    """All fields of a reference; `required`: group and kind have no default."""
    yield from check_group(f"{path}.group", found.group, required=required)
    yield from check_kind(f"{path}.kind", found.kind, required=required)
    yield from check_name(f"{path}.name", found.name)
    yield from check_namespace(f"{path}.namespace", getattr(found, "namespace", None))
    yield from check_section(f"{path}.sectionName", getattr(found, "section_name", None))
    yield from check_port(f"{path}.port", getattr(found, "port", None))


def check_backend(path: str, found: Reference) -> Iterator[Problem]:
    """A reference to a backend: that to a Service has a port."""
    yield from check_reference(path, found)
    is_service = not found.group and found.kind in (None, "Service")
    if is_service and getattr(found, "port", None) is None:
        yield error(f"{path}.port", "is missing: a Service needs it")


def check_distinct(path: str, keys: Iterable[object], what: str) -> Iterator[Problem]:
    """An error at each entry whose key another one before it has."""
    seen: dict[object, int] = {}
    for index, key in enumerate(keys):
        if key in seen:
            yield error(f"{path}[{index}]", f"{what} that of {path.rpartition('.')[2]}[{seen[key]}]")
        elif key is not None:
            seen[key] = index


def check_selector(path: str, selector: LabelSelector) -> Iterator[Problem]:
    for key, value in selector.match_labels.items():
        yield from check(f"{path}.matchLabels[{key}]", label_key_reason(key) or label_value_reason(value))
    for index, requirement in enumerate(selector.match_expressions):
        here = f"{path}.matchExpressions[{index}]"
        yield from check(f"{here}.key", label_key_reason(requirement.key) if requirement.key else "is missing")
        yield from check_one_of(f"{here}.operator", requirement.operator, _OPERATORS, required=True)
        if requirement.operator in ("In", "NotIn") and not requirement.values:
            yield error(f"{here}.values", f"is missing: {requirement.operator} needs it")
        if requirement.operator in ("Exists", "DoesNotExist") and requirement.values:
            yield error(f"{here}.values", f"can't be set with {requirement.operator}")


def check_options(path: str, options: Mapping[str, str]) -> Iterator[Problem]:
    """Annotation-like keys with values of at most 4,096 characters."""
    yield from check_count(path, options, 16)
    for key, value in options.items():
        yield from check(f"{path}[{key}]", label_key_reason(key))
        if len(value) > 4096:
            yield error(f"{path}[{key}]", "is longer than 4096 characters")


def duration_reason(text: str) -> str:
    """The fault in a duration in the form of GEP-2257: at most four numbers, of at most five digits, with units."""
    if _DURATION.fullmatch(text):
        return ""
    return f'"{text[:40]}" is not a duration of the Gateway API: up to four numbers of h, m, s or ms, such as 1h30m'


def check_duration(path: str, text: str | None) -> Iterator[Problem]:
    if text is not None:
        yield from check(path, duration_reason(text))


def seconds_of(text: str | None) -> float | None:
    """The length of a duration; None if there is none or it is not well formed."""
    if text is None or duration_reason(text):
        return None
    return read_duration(text).total_seconds()
