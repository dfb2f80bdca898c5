"""The services that a filter over instances can match, so that no query is spent on the others.

The filter of settings is one over health entries (``Service.Meta.team == "a"``). The catalog's list of services has
its own selectors (``ServiceMeta.team``) and is filtered by newer versions of Consul only; but it lists tags and
names, which is enough to rule services out by. Rules: Consul, "Filtering", "Health HTTP API", "Catalog HTTP API".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

_STRING = re.compile(r'("(?:[^"\\]|\\.)*"|`[^`]*`)')
_SELECTORS = (
    (r"\bService\.Service\b", "ServiceName"),
    (r"\bService\.(ID|Tags|Meta|Address|Port|TaggedAddresses|Weights|EnableTagOverride)\b", r"Service\1"),
    (r"\bNode\.Meta\b", "NodeMeta"),
    (r"\bNode\.TaggedAddresses\b", "TaggedAddresses"),
    (r"\bNode\.(ID|Address|Datacenter|Node)\b", r"\1"),
)
_OTHERS = re.compile(r"\b(Checks|Service\.\w+|Node\.\w+)\b")

_VALUE = r'(?:"(?P<quoted>[^"\\]*)"|`(?P<raw>[^`]*)`|(?P<bare>[\w-]+))'
_HAS_TAG = re.compile(rf"{_VALUE}\s+in\s+Service\.Tags|Service\.Tags\s+contains\s+{_VALUE.replace('P<', 'P<x')}")
_IS_NAMED = re.compile(rf"Service\.Service\s*==\s*{_VALUE}")


@attrs.frozen
class ServiceFilter:
    """The names and tags that a service must have for any of its instances to match."""

    tags: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def admits(self, name: str, tags: Iterable[str]) -> bool:
        """True if a service, with the tags of all its instances, may have an instance that matches."""
        return self.names <= {name} and self.tags <= set(tags)


def service_filter(expression: str, tag: str) -> ServiceFilter:
    """The filter over services for one over instances, and a tag that instances must have.

    It demands nothing that the expression does not plainly demand: only parts that ``and`` joins at the top count.
    """
    tags = {tag} if tag else set()
    names = set()
    structure = _STRING.sub('""', expression)
    if not re.search(r"[()]|\b(or|not)\b", structure):
        for part in _conjuncts(expression):
            if found := _HAS_TAG.fullmatch(part):
                tags.add(next(text for text in found.groups() if text is not None))
            elif found := _IS_NAMED.fullmatch(part):
                names.add(next(text for text in found.groups() if text is not None))
    return ServiceFilter(frozenset(tags), frozenset(names))


def catalog_filter(expression: str) -> str:
    """A filter over health entries as one over entries of the catalog; empty if it names a field that those lack."""
    found = []
    for part in _STRING.split(expression):
        if not _STRING.fullmatch(part):
            for pattern, replacement in _SELECTORS:
                part = re.sub(pattern, replacement, part)
            if _OTHERS.search(part):
                return ""
        found.append(part)
    return "".join(found)


def _conjuncts(expression: str) -> list[str]:
    parts = [""]
    for piece in _STRING.split(expression):
        if _STRING.fullmatch(piece):
            parts[-1] += piece
        else:
            first, *rest = re.split(r"\band\b", piece)
            parts[-1] += first
            parts += rest
    return [part.strip() for part in parts]
