"""Permissions of an intention (layer 7), and which requests they deny, in the terms of an AuthorizationPolicy.

A request is judged by the first permission that matches it. A rule of an AuthorizationPolicy has no order, so that the
denied requests are said one by one: what a permission denies, without what those before it allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import attrs

from mesh_pilot.consul.mesh.fields import Fields
from mesh_pilot.consul.mesh.values import Spec

MAX_REGIONS = 64
"""Rules that one source may need at most."""


class UnsayableError(ValueError):
    """A match that an AuthorizationPolicy can't say."""


@attrs.frozen
class RequestTest:
    """One thing that a request must have, or must not have."""

    kind: str
    """``path``, ``method``, or a header as a condition has it: ``request.headers[x-id]``."""
    values: tuple[str, ...]
    """Any of these: ``/a``, ``/a*``, ``*``."""
    is_negative: bool = False

    def negated(self) -> RequestTest:
        return attrs.evolve(self, is_negative=not self.is_negative)


Region = tuple[RequestTest, ...]
"""The requests that pass all of these; empty: every request."""


@attrs.frozen
class IntentionPermission:
    allows: bool
    tests: Region


def read_permissions(fields: Sequence[Fields]) -> tuple[IntentionPermission, ...]:
    """The permissions of an intention; what can't be said is a problem, and is read so that more is denied."""
    found = []
    for permission in fields:
        allows = permission.text("Action") == "allow"
        http = permission.part("HTTP")
        tests: list[RequestTest] = []
        try:
            for test in _tests(http) if http is not None else ():
                if isinstance(test, UnsayableError):
                    if allows:
                        raise test
                    permission.warn("HTTP", f"{test}; the permission denies requests regardless of it")
                else:
                    tests.append(test)
        except UnsayableError as error:
            permission.warn("HTTP", f"{error}; the permission allows nothing")
            continue
        found.append(IntentionPermission(allows, tuple(tests)))
    return tuple(found)


def denied_regions(permissions: Iterable[IntentionPermission], *, default_allow: bool) -> list[Region] | None:
    """The requests that are denied, as regions that may overlap; None if these are too many."""
    allowed: list[Region] = []
    denied: list[Region] = []
    every: list[IntentionPermission] = [*permissions, *([] if default_allow else [IntentionPermission(False, ())])]
    for permission in every:
        if permission.allows:
            allowed.append(permission.tests)
            continue
        choices = [[test.negated() for test in region] for region in allowed]
        count = 1
        for choice in choices:
            count *= len(choice)
        if count > MAX_REGIONS:
            return None
        found = (_simplified((*permission.tests, *chosen)) for chosen in product(*choices))
        denied += [region for region in found if region is not None and region not in denied]
    return denied if len(denied) <= MAX_REGIONS else None


def rule_parts(region: Region) -> tuple[Spec, list[Spec]]:
    """The operation and the conditions of a region."""
    operation: Spec = {}
    conditions: list[Spec] = []
    for test in region:
        if test.kind in ("path", "method"):
            name = f"not{test.kind.title()}s" if test.is_negative else f"{test.kind}s"
            operation.setdefault(name, []).extend(test.values)
        else:
            name = "notValues" if test.is_negative else "values"
            conditions.append({"key": test.kind, name: list(test.values)})
    return operation, conditions


def _tests(http: Fields) -> Iterable[RequestTest | UnsayableError]:
    for name, form in (("PathExact", "{}"), ("PathPrefix", "{}*")):
        if http.has(name):
            path = http.text(name)
            if "*" in path or "{" in path:
                yield UnsayableError(f"{name} {path!r} has a character that means something else in a policy")
            elif form.format(path) != "/*":
                yield RequestTest("path", (form.format(path),))
    if http.has("PathRegex"):
        http.text("PathRegex")
        yield UnsayableError("a policy has no regular expressions for paths")
    if methods := http.strings("Methods"):
        yield RequestTest("method", tuple(sorted(set(methods))))
    for header in http.parts("Header"):
        yield _header_test(header)


def _header_test(header: Fields) -> RequestTest | UnsayableError:
    name = header.text("Name").lower()
    values = []
    for field, form in (("Exact", "{}"), ("Prefix", "{}*"), ("Suffix", "*{}")):
        if header.has(field):
            values.append(form.format(header.text(field)))
    present = header.flag("Present")
    is_negative = header.flag("Invert")
    unsaid = [field for field in ("Contains", "Regex") if header.text(field)]
    ignore_case = header.flag("IgnoreCase")
    if unsaid or ignore_case:
        return UnsayableError(f"a policy can't say {(*unsaid, 'IgnoreCase')[0]} of a header")
    if len(values) + present != 1 or not name or any("*" in value[1:-1] for value in values):
        return UnsayableError(f"{header.path} does not say one thing about a header")
    return RequestTest(f"request.headers[{name}]", tuple(values) or ("*",), is_negative)


def _simplified(region: Region) -> Region | None:
    """The same region with one positive test of paths and methods at most; None if it is empty."""
    # A policy says one list of paths and methods in a rule, so positive tests are joined into one. Then the negative
    # ones are taken off it: a rule that can match nothing would otherwise cost each request a look.
    positive: dict[str, tuple[str, ...]] = {}
    rest: list[RequestTest] = []
    for test in dict.fromkeys(region):
        if test.is_negative or test.kind not in ("path", "method"):
            rest.append(test)
            continue
        held = positive.get(test.kind)
        common = test.values if held is None else _intersection(held, test.values)
        if not common:
            return None
        positive[test.kind] = common
    for kind, values in list(positive.items()):
        without = {v for test in rest if test.kind == kind and test.is_negative for v in test.values}
        left = tuple(v for v in values if not any(_covers(other, v) for other in without))
        if not left:
            return None
        positive[kind] = left
    tests = {test for test in rest if test.kind not in ("path", "method")}
    if any(test.negated() in tests for test in tests):
        return None
    kept = [RequestTest(kind, values) for kind, values in positive.items()]
    return tuple(sorted({*kept, *rest}, key=lambda t: (t.kind, t.is_negative, t.values)))


def _intersection(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for one, other in product(left, right):
        if _covers(one, other):
            found.append(other)
        elif _covers(other, one):
            found.append(one)
    return tuple(dict.fromkeys(found))


def _covers(pattern: str, other: str) -> bool:
    """True if everything that ``other`` matches is matched by a pattern; both end in ``*`` or are exact."""
    if pattern.endswith("*"):
        return other.removesuffix("*").startswith(pattern[:-1])
    return pattern == other
