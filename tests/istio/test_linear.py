"""What is read takes time in proportion to its length, whatever it holds; and what is too long is refused.

Work is counted, not timed, where Python's own calls and lines can be counted. Where one call of a regular expression
does the work, its CPU time for n and 8n is compared: a quadratic one takes 64 times as long, a linear one 8 times.
"""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.istio.meaning import durations
from mesh_pilot.istio.reading import scalars, yaml_marked
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.istio.reading.problems import MAX_ERRORS, MAX_REASON, MAX_WARNINGS
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.istio.rules import cel, names, regex, substitution, values
from mesh_pilot.istio.rules.overlaps import Cover, overlapping_hosts, overlapping_localities
from mesh_pilot.model.config import ConfigError, Origin, Severity
from tests.support.rules import problems_of
from tests.support.sample import examples

ORIGIN = Origin("files", "x.yaml")
TO = {"destination": {"host": "a"}}


def parse_duration(text: str) -> object:
    try:
        return durations.read_duration(text)
    except ValueError as error:
        return error


def lenient_plain(text: str) -> object:
    try:
        return yaml_marked.scalar_value(text)
    except ValueError as error:
        return error


READERS: dict[str, Callable[[str], object]] = {
    "regex": regex.regex_reason,
    "header value": values.header_value_reason,
    "access log": substitution.log_format_reason,
    "CEL": cel.cel_reason,
    "duration": parse_duration,
    "YAML scalar": lenient_plain,
    "host": names.wildcard_host_reason,
    "label key": names.label_key_reason.__wrapped__,
    "label value": names.label_value_reason.__wrapped__,
    "subnet": names.subnet_reason,
    "host and port": names.address_and_port_reason,
    "Unix socket": names.unix_path_reason,
    "bound address": names.bound_ip_reason,
    "name": names.name_part_reason,
}
HEADS = ("", "%(", "%REQ(", "'", "[", "1", "0x")
REPEATED = (
    *("[", "(", "[^", "(?i", "\\\\", "a?", "a|", "{1", "](", "[a"),
    *("%(", "%", "% ", '%(["', '\\"', "%%", "):1", "%REQ(a)%", "''", "a&&", "a?b:"),
    *("1", "1h", "1.", "0", ":1", "٣", "a.", "a-", "-", " "),
)


@pytest.mark.parametrize("name", READERS)
def test_a_long_text_is_read_in_linear_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex, "MAX_REGEX", sys.maxsize)
    monkeypatch.setattr(cel, "MAX_EXPRESSION", sys.maxsize)
    monkeypatch.setattr(values, "MAX_HEADER", sys.maxsize)
    monkeypatch.setattr(durations, "MAX_DURATION_TEXT", sys.maxsize)
    monkeypatch.setattr(yaml_marked, "MAX_NUMBER", 4000)

    def seconds(head: str, unit: str, size: int) -> float:
        text = head + unit * (size // len(unit)) + "!"
        started = time.thread_time()
        READERS[name](text)
        return time.thread_time() - started

    for head in HEADS:
        for unit in REPEATED:
            slow = [took for size in (16_000, 16_000) if (took := seconds(head, unit, size)) > 0.25]
            if len(slow) == 2:  # a quadratic reader takes seconds; or else the machine is slow
                assert min(slow) < 30 * min(seconds(head, unit, 2_000) for _ in range(3)), (head, unit)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ({"timeout": "1" * 12_000 + "s"}, "timeout", "at most 100 characters, this has 12001"),
        ({"match": [{"uri": {"regex": "[" * 20_000}}]}, "match[0].uri", "allowed are 16384"),
        ({"headers": {"request": {"set": {"x": "%(" * 15_000}}}}, "headers.request.set[x]", "allowed are 16384"),
        ({"retries": {"attempts": 1, "retryOn": "1" * 5_000}}, "retries.retryOn", "is not a status code"),
        ({"match": [{"port": 10**4_400}]}, "match[0].port", "more than 256 bits is out of range"),
        ({"match": [{"name": "\ud800"}]}, "match[0].name", "half of a surrogate pair"),
    ],
)
def test_a_value_that_is_too_long_is_refused_with_its_field(field: dict[str, Any], value: str, said: str) -> None:
    (problem,) = problems_of("VirtualService", {"hosts": ["a"], "http": [{"route": [TO], **field}]})
    assert problem.path == f"spec.http[0].{value}"
    assert said in problem.reason and len(problem.reason) < 2 * MAX_REASON


@pytest.mark.parametrize("number", ["1" * 4_400, "-" + "1" * 4_400, "0x" + "f" * 4_400, "1." + "1" * 4_400])
@pytest.mark.parametrize("text", ["a: {}", "{}: a", "a: [{}]", "&a {}: 1"])
def test_a_number_that_is_too_long_is_refused_with_its_line(text: str, number: str) -> None:
    (found,) = load("# a comment\n" + text.replace("{}", number), ORIGIN)
    assert isinstance(found, ConfigError)
    assert found.origin.line == 2
    assert "characters, allowed are 400" in found.problems[0].reason


def test_the_same_digits_in_quotes_are_text() -> None:
    (found,) = load(f'a: "{"1" * 4_400}"', ORIGIN)
    assert isinstance(found, Document) and found.data == {"a": "1" * 4_400}


def nested(depth: int, inner: Callable[[object], object]) -> object:
    value: object = 1
    for _ in range(depth):
        value = inner(value)
    return value


@pytest.mark.parametrize("inner", [lambda value: [value], lambda value: {"a": value}], ids=["lists", "objects"])
def test_a_value_of_any_shape_may_be_nested_only_so_deep(inner: Callable[[object], object]) -> None:
    def found(depth: int) -> list[str]:
        patch = {"operation": "MERGE", "value": {"a": nested(depth, inner)}}
        spec = {"configPatches": [{"applyTo": "CLUSTER", "patch": patch}]}
        return [problem.reason for problem in problems_of("EnvoyFilter", spec)]

    assert found(scalars.MAX_DEPTH - 1) == []
    for depth in (scalars.MAX_DEPTH, 300, 5_000):
        assert found(depth) and all("nested too deeply" in reason for reason in found(depth))


def test_a_key_set_that_is_nested_too_deeply_is_refused() -> None:
    (problem,) = problems_of("RequestAuthentication", {"jwtRules": [{"issuer": "a", "jwks": "[" * 100_000}]})
    assert "nested too deeply" in problem.reason


def test_nobody_reads_on_after_a_hundred_errors() -> None:
    for wrong in ({}, {"match": [{"port": "a"}]}, {"unknown": 1}):
        problems = problems_of("VirtualService", {"hosts": ["a"], "http": [wrong] * 10_000})
        assert len(problems) == MAX_ERRORS + 1
        assert problems[-1].reason == "has 100 errors or more; the first 100 are listed"


def test_warnings_beyond_a_hundred_are_counted() -> None:
    routes = [{"route": [TO], "mirrorPercent": 5, "match": [{"port": number + 1}]} for number in range(150)]
    problems = problems_of("VirtualService", {"hosts": ["a"], "http": routes})
    assert {problem.severity for problem in problems} == {Severity.WARNING}
    assert len(problems) == MAX_WARNINGS + 1
    assert problems[-1].reason == "has 50 more warnings; the first 100 are listed"


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python run."""
    count = 0

    def trace(frame: object, event: str, arg: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def service_entry(size: int) -> object:
    endpoints = [{"address": f"10.0.{i >> 8}.{i & 255}", "labels": {"n": str(i)}} for i in range(size)]
    ports = [{"number": 80, "name": "http"}]
    return {"hosts": ["a.b"], "resolution": "STATIC", "ports": ports, "endpoints": endpoints}


def distributed(size: int) -> object:
    distribute = [{"from": f"r{i}/*", "to": {f"r{i}": 100}} for i in range(size)]
    return {"host": "a", "trafficPolicy": {"loadBalancer": {"localityLbSetting": {"distribute": distribute}}}}


def many_hosts(size: int) -> object:
    hosts = [f"h{i}.test" for i in range(size)]
    return {"hosts": hosts, "tls": [{"match": [{"sniHosts": hosts}], "route": [TO]}]}


OBJECTS: dict[str, tuple[str, Callable[[int], object]]] = {
    "endpoints": ("ServiceEntry", service_entry),
    "localities": ("DestinationRule", distributed),
    "hosts": ("VirtualService", many_hosts),
    "routes": (
        "VirtualService",
        lambda n: {"hosts": ["a"], "http": [{"match": [{"port": i + 1}], "route": [TO]} for i in range(n)]},
    ),
    "namespaces": ("VirtualService", lambda n: {"hosts": ["a"], "http": [{"route": [TO]}], "exportTo": ["a"] * n}),
    "unknown fields": ("Sidecar", lambda n: {f"f{i}": 1 for i in range(n)}),
    "egress": ("Sidecar", lambda n: {"egress": [{"hosts": [f"*/h{i}.test" for i in range(n)]}]}),
    "subsets": ("DestinationRule", lambda n: {"host": "a", "subsets": [{"name": f"s{i}"} for i in range(n)]}),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_of_many_parts_is_read_in_linear_time(name: str) -> None:
    kind, make = OBJECTS[name]
    few, many = make(150), make(1_200)
    problems_of(kind, few)  # caches are filled
    assert steps(lambda: problems_of(kind, many)) < 12 * steps(lambda: problems_of(kind, few))


parts = st.lists(st.sampled_from(["a", "b", "aa"]), min_size=1, max_size=3)
hosts = st.lists(
    st.just("*") | st.builds(operator.add, st.sampled_from(["", "*", "*.", "*-"]), parts.map(".".join)), max_size=6
)
localities = st.lists(parts.map("/".join) | st.sampled_from(["*", "a/*", "a/b/*"]), max_size=5)


def have_a_name_in_common(one: str, other: str) -> bool:
    if one.startswith("*") and other.startswith("*"):
        return one[1:].endswith(other[1:]) or other[1:].endswith(one[1:])
    wild, plain = (one, other) if one.startswith("*") else (other, one)
    return plain.endswith(wild[1:]) if wild.startswith("*") else wild == plain


@given(hosts)
@settings(max_examples=examples(500))
def test_hosts_that_overlap_are_those_that_do_one_by_one(hosts: list[str]) -> None:
    pairs = set(overlapping_hosts(hosts))
    every = {(i, j) for i in range(len(hosts)) for j in range(i) if have_a_name_in_common(hosts[i], hosts[j])}
    assert pairs <= every
    assert bool(pairs) == bool(every)


@given(hosts, hosts)
@settings(max_examples=examples(500))
def test_what_hosts_cover_is_what_one_of_them_covers(hosts: list[str], asked: list[str]) -> None:
    def within(host: str, outer: str) -> bool:
        return host.removeprefix("*").endswith(outer[1:]) if outer.startswith("*") else host == outer

    cover = Cover(hosts)
    for host in asked:
        assert cover.covers(host) == any(within(host, outer) for outer in hosts)


@given(localities)
def test_localities_that_overlap_are_those_that_do_one_by_one(localities: list[str]) -> None:
    def within(locality: str, outer: str) -> bool:
        outer = outer.removesuffix("*").removesuffix("/")
        return not outer or locality == outer or locality.startswith(f"{outer}/")

    pairs = set(overlapping_localities(localities))
    every = {
        (i, j)
        for i, one in enumerate(localities)
        for j, other in enumerate(localities[:i])
        if within(one, other) or within(other, one)
    }
    assert pairs <= every
    assert bool(pairs) == bool(every)


@given(st.text(max_size=40) | st.text(alphabet="[](){}\\^-&|?*+:alphaQE1,", max_size=12))
@settings(max_examples=examples(500))
def test_any_regular_expression_is_judged_without_a_warning(pattern: str) -> None:
    regex.regex_reason(pattern)


@given(st.dictionaries(st.text(st.characters(), max_size=5), st.text(st.characters(), max_size=5), max_size=3))
def test_whatever_is_written_the_problems_can_be_logged(data: dict[str, str]) -> None:
    document = {"apiVersion": "networking.istio.io/v1", "kind": "Sidecar", "metadata": {"name": "x", "labels": data}}
    for spec in (data, {"workloadSelector": {"labels": data}}):
        try:
            found = decode({**document, "spec": spec}, origin=ORIGIN).warnings
        except ConfigError as error:
            found = error.problems
        for problem in found:
            assert str(problem).encode()


@pytest.mark.parametrize(
    "pattern",
    [
        r"\x{FF}",
        r"[\x{E4}]",
        r"[[:alpha:]]+",
        r"\pN\P{Greek}",
        r"[\pN]",
        r"\Q[(\E",
        r"(?U)a+",
        r"(?<n>a)",
        r"a\z",
        "é+",
        "(a+)+$",
        ".{0,1000}",
        "a" * 16_384,
        "(" * 1_000 + ")*" * 1_000,
    ],
)
def test_what_re2_takes_is_let_through(pattern: str) -> None:
    assert regex.regex_reason(pattern) == ""


@pytest.mark.parametrize(
    "pattern",
    [
        *("[", "[]", "[^]", "(", r"(a)\1", "a(?=b)", "a++", "a{1001}", r"\E", "*", r"\p{None}"),
        *(r"\x{100}", r"[\x{10FFFF}]", "(?P<é>a)", "[я-а]"),  # older Envoys match characters, newer ones bytes
        *(r"\pL" * 100, ".{1000}" * 4, "(x{30}){30}" * 9, "é" * 16_384),
    ],
)
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    assert regex.regex_reason(pattern)


@pytest.mark.parametrize(
    "unit", ["x{0,30}", "x{0,1000}", ".{0,10}", r"\pL", r"(?i)\PL", "a?", "(a|b?)", "[^a]", "[A-\U0010ffff]"]
)
def test_a_regular_expression_that_takes_seconds_to_compile_is_refused_before(unit: str) -> None:
    for times in (regex.MAX_REGEX // len(unit), 7):
        started = time.thread_time()
        regex.regex_reason(unit * times)
        assert time.thread_time() - started < 2
