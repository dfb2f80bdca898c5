"""Random VirtualServices, and random requests that nearly match them, for comparisons with a real Envoy."""

from __future__ import annotations

import random
from typing import Any

import attrs

HOSTS = ("one.example.com", "two.example.com", "*.wild.example.com", "*.more.wild.example.com", "three.example.com")
"""Hosts of VirtualServices; all are services."""

ASKED = (
    *("one.example.com", "two.example.com", "three.example.com", "ONE.example.com"),
    *(
        "a.wild.example.com",
        "a.b.wild.example.com",
        "a.more.wild.example.com",
        "wild.example.com",
        "more.wild.example.com",
    ),
    "nobody.example.org",
)

_PATHS = (
    "/",
    "/a",
    "/a/b",
    "/ab",
    "/A",
    "/a/",
    "/b",
    "/b/12",
    "/b/1x",
    "/c.html",
    "/A/B",
    "/%61/b",
    "/a/../b",
    "/a//b",
)
_VALUES = ("1", "12", "ab", "AB", "a,b", "", "abc")
_HEADERS = ("x-a", "x-b", "X-C")
_QUERIES = ("", "?", "?q=1", "?q=12&r", "?r=ab&q=", "?q=1&q=12", "?Q=1", "?q=%31", "?r", "?q=abc#f")
_REGEXES = ("1.*", "[0-9]+", ".*b", "a|ab", "", "(?i)ab", "^a.*", "[^,]*")
_PATH_REGEXES = ("/a.*", "/b/[0-9]+", "/[ab]", ".*", ".*[.]html", "/(?i)a/.", "/a/?")
METHODS = ("GET", "POST", "PUT", "DELETE")


@attrs.frozen
class Asked:
    """A request."""

    host: str
    path: str
    method: str
    headers: tuple[tuple[str, str], ...]


def random_match(chance: random.Random) -> dict[str, Any]:
    """An HTTPMatchRequest."""
    match: dict[str, Any] = {}
    if chance.random() < 0.7:
        match["uri"] = _path_match(chance)
        if chance.random() < 0.25:
            match["ignoreUriCase"] = True
    if chance.random() < 0.4:
        match["headers"] = {name: _value_match(chance) for name in chance.sample(_HEADERS, chance.randint(1, 2))}
    if chance.random() < 0.25:
        match["withoutHeaders"] = {name: _value_match(chance) for name in chance.sample(_HEADERS, 1)}
    if chance.random() < 0.3:
        match["queryParams"] = {name: _value_match(chance) for name in chance.sample(("q", "r"), 1)}
    if chance.random() < 0.2:
        match["method"] = {"exact": chance.choice(METHODS)}
    if chance.random() < 0.1:
        match["scheme"] = {"exact": chance.choice(("http", "https"))}
    if chance.random() < 0.15:
        match["authority"] = chance.choice(
            ({"prefix": "a."}, {"regex": "(one|two)[.].*"}, {"exact": "one.example.com"})
        )
    return match or {"uri": {"prefix": "/"}}


def _path_match(chance: random.Random) -> dict[str, str]:
    kind = chance.choice(("exact", "prefix", "prefix", "regex"))
    if kind == "regex":
        return {"regex": chance.choice(_PATH_REGEXES)}
    return {kind: chance.choice(("/", "/a", "/a/b", "/b", "/A", "/a/", "/b/1"))}


def _value_match(chance: random.Random) -> dict[str, str]:
    kind = chance.choice(("exact", "prefix", "regex", "any"))
    match kind:
        case "any":
            return {}
        case "regex":
            return {"regex": chance.choice([r for r in _REGEXES if r])}
        case _:
            return {kind: chance.choice([value for value in _VALUES if value])}


def random_rules(chance: random.Random, upstream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ``http`` rules of a VirtualService. The n-th answers, or has its backend's answers carry, ``x-rule: n``."""
    rules = []
    for number in range(chance.randint(1, 7)):
        rule: dict[str, Any] = {"headers": {"response": {"set": {"x-rule": str(number)}}}}
        if chance.random() < 0.9:
            rule["match"] = [random_match(chance) for _ in range(chance.randint(1, 3))]
        kind = chance.random()
        if kind < 0.5:
            rule["directResponse"] = {"status": chance.choice((200, 403, 503))}
        elif kind < 0.65:
            rule["redirect"] = {"uri": "/else", "redirectCode": chance.choice((301, 302, 307))}
        elif kind < 0.8:
            rule["route"] = [chance.choice(upstream)]
        else:
            rule["route"] = [{**each, "weight": weight} for each, weight in zip(upstream, (30, 70), strict=True)]
        rules.append(rule)
    return rules


def random_request(chance: random.Random, port: int) -> Asked:
    """A request that some of these rules match, or nearly."""
    host = chance.choice(ASKED)
    if chance.random() < 0.3:
        host += f":{chance.choice((port, 80, 1234))}"
    names = chance.sample((*_HEADERS, "X-A", "x-forwarded-proto"), chance.randint(0, 3))
    values = {"x-forwarded-proto": ("https", "http")}
    headers = tuple((name, chance.choice(values.get(name, _VALUES))) for name in names)
    if chance.random() < 0.2:
        headers += (("x-a", chance.choice(_VALUES)), ("x-b", chance.choice(_VALUES)))
    path = chance.choice(_PATHS) + chance.choice(_QUERIES)
    return Asked(host, path, chance.choice(METHODS), headers)
