"""Analysis of files: what is suppressed, what is not known, forms of output, and its cost."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from mesh_pilot.cli.explain.analysis_output import as_junit, as_sarif
from mesh_pilot.cli.explain.analyze import command
from mesh_pilot.explain.analysis.analyze import analyze_picture
from mesh_pilot.explain.analysis.analyzers import ANALYZERS
from mesh_pilot.explain.analysis.command_line import Analysis, analyze
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.input import picture_of
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext
from mesh_pilot.explain.analysis.suppressions import SuppressionError, Suppressions
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.model.config import Config, Origin
from mesh_pilot.model.events import Replace
from mesh_pilot.ops.api.analysis import workers_together
from mesh_pilot.world import World

NETWORKING = "networking.istio.io/v1"
WRONG_HOST = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop%s}
spec:
  hosts: [%s]
  http: [{route: [{destination: {host: %s}}]}]
"""


def of_text(text: str, folder: Path, *suppress: str, secrets: tuple[str, ...] = ()) -> Analysis:
    (folder / "a.yaml").write_text(text)
    return analyze([str(folder / "a.yaml")], io.BytesIO(), secrets=secrets, suppressions=Suppressions.parse(suppress))


def codes(found: Analysis) -> list[str]:
    return [finding.code for finding in found.findings]


@pytest.mark.parametrize(
    ("suppression", "is_silent"),
    [
        ("IST0101", True),
        ("ist0101=VirtualService/shop/*", True),
        ("IST*=*/reviews", True),
        ("IST0101=VirtualService reviews.shop", True),
        ("IST0101=VirtualService/other/*", False),
        ("IST0109", False),
    ],
)
def test_a_suppressed_message_is_counted_and_not_told(suppression: str, is_silent: bool, tmp_path: Path) -> None:
    found = of_text(WRONG_HOST % ("", "reviews.test", "nobody.test"), tmp_path, suppression)
    assert (codes(found), found.suppressed) == (([], 1) if is_silent else (["IST0101"], 0))


@pytest.mark.parametrize(
    ("value", "left"), [("IST0101", []), ("'IST0109, IST0101'", []), ("'*'", []), ("IST0109", ["IST0101"])]
)
def test_an_object_may_say_what_is_not_told_of_it(value: str, left: list[str], tmp_path: Path) -> None:
    annotation = f", annotations: {{galley.istio.io/analyze-suppress: {value}}}"
    assert codes(of_text(WRONG_HOST % (annotation, "reviews.test", "nobody.test"), tmp_path)) == left


def test_a_code_that_is_not_there_cannot_be_suppressed() -> None:
    with pytest.raises(SuppressionError, match="there is no message 'IST9999'"):
        Suppressions.parse(["IST9999=*"])


def test_hosts_of_a_registry_that_is_not_in_the_files_are_not_looked_for(tmp_path: Path) -> None:
    assert codes(of_text(WRONG_HOST % ("", "reviews.service.consul", "reviews.service.consul"), tmp_path)) == []


def test_hidden_services_are_told_from_unknown_ones(tmp_path: Path) -> None:
    entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a, namespace: other}\n"
    entry += (
        "spec: {hosts: [reviews.other.test], exportTo: ['.'], resolution: DNS, ports: [{number: 80, name: http}]}\n"
    )
    text = WRONG_HOST % ("", "www.test", "reviews.othr.test") + "---\n" + entry
    assert of_text(text, tmp_path).findings[0].fix == "reviews.other.test is not exported to the namespace shop."


DELEGATION = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: root, namespace: shop}
spec:
  hosts: [a.test]
  http:
  - {match: [{uri: {prefix: /a}}], delegate: {name: %s, namespace: lab}}
  - {match: [{uri: {prefix: /b}, gateways: [mesh]}], delegate: {name: inner, namespace: lab}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: inner, namespace: lab}
spec: {%s http: [{match: [%s], directResponse: {status: 200}}]}
"""


@pytest.mark.parametrize(
    ("name", "more", "match", "told"),
    [
        ("inner", "", "{uri: {prefix: /a/1}}", []),
        ("inner", "", "{uri: {prefix: /b/1}, gateways: [mesh]}", []),
        (
            "iner",
            "",
            "{uri: {prefix: /b}}",
            [('Referenced delegate not found: "lab/iner"', "spec.http[0].delegate.name")],
        ),
        ("inner", "exportTo: [other],", "{method: {exact: GET}}", ["lab/inner is not exported to shop."] * 2),
        ("inner", "hosts: [b.test],", "{method: {exact: GET}}", ["lab/inner has hosts: a delegate has none."] * 2),
        ("inner", "", "{uri: {prefix: /a}}, {uri: {prefix: /c}}", [("http[0] of shop/root", "spec.http[0].match[1]")]),
        ("inner", "", "{uri: {prefix: /c}}", [("http[0] of shop/root", "spec.http[0].match[0]")]),
    ],
)
def test_delegation_that_leads_nowhere_is_told(
    name: str, more: str, match: str, told: list[tuple[str, str] | str], tmp_path: Path
) -> None:
    found = of_text(DELEGATION % (name, more, match), tmp_path).findings
    assert len(found) == len(told)
    for finding, expected in zip(found, told, strict=True):
        if isinstance(expected, str):
            assert finding.fix == expected
        else:
            assert expected[0] in finding.reason and finding.field == expected[1]


def test_credentials_are_looked_for_where_a_folder_of_them_is_given(tmp_path: Path) -> None:
    gateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec:\n"
    gateway += "  selector: {istio: edge}\n  servers:\n  - hosts: ['*']\n"
    gateway += "    port: {number: 443, name: https, protocol: HTTPS}\n"
    gateway += "    tls: {mode: SIMPLE, credentialName: example}\n"
    rule = (
        "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: shop}\nspec:\n"
    )
    rule += "  host: a.service.consul\n  trafficPolicy: {tls: {mode: SIMPLE, credentialName: other}}\n"
    assert codes(of_text(gateway + rule, tmp_path)) == ["IST0128"]
    (tmp_path / "secrets").mkdir()
    found = of_text(gateway + rule, tmp_path, secrets=(str(tmp_path / "secrets"),))
    assert codes(found) == ["IST0101", "IST0101", "IST0128"]
    ordered = "acme: {directory: 'https://a.test', termsOfServiceAgreed: true, credentials: [{name: shop/example}]}"
    (tmp_path / "mesh.yaml").write_text(ordered)
    files = [str(tmp_path / "a.yaml"), str(tmp_path / "mesh.yaml")]
    found = analyze(files, io.BytesIO(), secrets=(str(tmp_path / "secrets"),), suppressions=Suppressions(()))
    assert codes(found) == ["IST0101", "IST0128"]


def test_workloads_that_no_file_declares_are_not_said_to_be_missing(tmp_path: Path) -> None:
    """Clients and gateways have no endpoints: files that select them are good."""

    def manifest(kind: str, spec: str) -> str:
        group = "security" if kind.endswith(("Policy", "Authentication")) else "networking"
        head = f"---\napiVersion: {group}.istio.io/v1\nkind: {kind}\nmetadata: {{name: a, namespace: shop}}\n"
        return f"{head}spec: {spec}\n"

    text = manifest(
        "ServiceEntry",
        "{hosts: [a.test], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC,"
        " endpoints: [{address: 10.0.0.1, labels: {app: server}}]}",
    )
    text += manifest("Sidecar", "{workloadSelector: {labels: {app: client}}, egress: [{hosts: ['./*']}]}")
    text += manifest(
        "Gateway",
        "{selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}",
    )
    text += manifest("AuthorizationPolicy", "{selector: {matchLabels: {istio: edge}}, action: DENY, rules: [{}]}")
    text += manifest("RequestAuthentication", "{selector: {matchLabels: {istio: edge}}}")
    assert codes(of_text(text, tmp_path)) == []
    assert codes(of_text(text.replace("matchLabels: {istio: edge}", "matchLabels: {app: wrong}"), tmp_path)) == [
        *("IST0127", "MP0013")
    ]


def test_a_rule_without_roots_of_its_own_is_named(tmp_path: Path) -> None:
    rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: shop}\n"
    rule += "spec: {host: a.service.consul, trafficPolicy: {tls: {mode: SIMPLE}}}\n"
    assert codes(of_text(rule, tmp_path)) == ["IST0128"]
    assert codes(of_text(rule.replace("SIMPLE", "SIMPLE, caCertificates: /ca.pem"), tmp_path)) == []


def test_the_threshold_decides_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a}\n"
        "spec: {hosts: [a.test], addresses: [10.0.0.1], ports: [{number: 80, name: web}], resolution: DNS}\n"
    )

    def exit_code(*arguments: str) -> int:
        done = CliRunner().invoke(command, [str(tmp_path), *arguments], standalone_mode=False)
        assert done.exception is None
        return int(done.return_value)

    assert [exit_code("--failure-threshold", level) for level in ("error", "warning", "info")] == [0, 0, 1]
    assert exit_code("--failure-threshold", "info", "--suppress", "MP0016") == 0


HOSTILE = 'a"><script>\\x1b[31m'


def test_sarif_and_junit_have_every_problem_with_its_place(tmp_path: Path) -> None:
    found = of_text(WRONG_HOST % ("", "reviews.test", f"'{HOSTILE}'"), tmp_path)
    run = json.loads(as_sarif(found))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == sorted(set(codes(found)))
    for result, finding in zip(run["results"], found.findings, strict=True):
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == f"file://{tmp_path}/a.yaml"
        assert finding.where == f"{tmp_path}/a.yaml:{place['region']['startLine']}"
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == finding.code
        assert result["level"] in ("error", "warning", "note")
    suite = ElementTree.fromstring(as_junit(found))[0]
    assert (suite.get("tests"), suite.get("failures")) == (str(len(found.findings) + 1), str(len(found.findings)))
    assert [case.find("failure") is None for case in suite] == [True] + [False] * len(found.findings)


def test_an_object_that_is_refused_is_analyzed_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    text = WRONG_HOST % ("", "reviews.test", "nobody.test") + "  nonsense: 1\n"
    assert sorted(codes(of_text(text, tmp_path))) == ["IST0101", "IST0106"]


def test_an_analyzer_that_fails_costs_no_other_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
        yield from ()
        raise LookupError("nothing there")

    monkeypatch.setattr("mesh_pilot.explain.analysis.analyze.ANALYZERS", (failing, *ANALYZERS))
    found = of_text(WRONG_HOST % ("", "reviews.test", "nobody.test"), tmp_path)
    assert sorted(codes(found)) == ["IST0001", "IST0101"]
    assert found.findings[0].reason.endswith(".failing: LookupError: nothing there")


def test_workers_say_together_that_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*named: str) -> dict[str, Any]:
        rows = [{"code": code, "object": "a", "where": "", "reason": ""} for code in named]
        counts = {"errors": 0, "warnings": len(rows), "infos": 0}
        return {"objects": 1, "errors": [], "warnings": rows, "infos": [], "counts": counts, "suppressed": 0}

    merged = workers_together({1: answer("MP0014", "MP0013", "IST0109"), 2: answer("MP0013", "IST0110")})
    assert [row["code"] for row in merged["warnings"]] == ["MP0013", "IST0109", "IST0110"]
    assert merged["counts"] == {"errors": 0, "warnings": 3, "infos": 0}
    long = [{**answer(f"IST{number}"), "counts": {"errors": 0, "warnings": 9, "infos": 0}} for number in (1, 2)]
    assert workers_together({1: long[0], 2: long[1]})["counts"]["warnings"] == 2 + 8
    monkeypatch.setattr("mesh_pilot.ops.api.analysis.MOST_MESSAGES", 1)
    assert len(workers_together({1: long[0], 2: long[1]})["warnings"]) == 1


def mesh(count: int) -> list[Config]:
    """Wrong and good objects of the kinds that there are most of."""

    def config(kind: str, name: str, spec: dict[str, Any]) -> Config:
        metadata = {"name": name, "namespace": f"ns{count % 7}"}
        document = {"apiVersion": NETWORKING, "kind": kind, "metadata": metadata, "spec": spec}
        return decode(document, origin=Origin("files", f"{name}.yaml", 1))

    port = {"number": 80, "name": "http", "protocol": "HTTP"}
    found = []
    for i in range(count):
        host = f"s{i}.test"
        endpoint = {"address": "10.0.0.1", "labels": {"app": f"s{i}"}}
        entry = {"hosts": [host], "ports": [port], "resolution": "STATIC", "endpoints": [endpoint]}
        route = {"destination": {"host": host if i % 3 else f"wrong-{i}.example", "subset": "v1"}}
        hosts = [host if i % 5 else "shared.test"]
        routes = {"hosts": hosts, "gateways": ["mesh", "edge"], "http": [{"route": [route]}]}
        sidecar = {"workloadSelector": {"labels": {"app": f"s{i}"}}, "egress": [{"hosts": ["./*"]}]}
        found += [
            config("ServiceEntry", f"s{i}", entry),
            config("VirtualService", f"s{i}", routes),
            config("DestinationRule", f"s{i}", {"host": host, "subsets": [{"name": "v1", "labels": {"app": f"s{i}"}}]}),
            config("Gateway", f"g{i}", {"selector": {"istio": "edge"}, "servers": [{"port": port, "hosts": [host]}]}),
            config("Sidecar", f"s{i}", sidecar),
        ]
    return found


def calls_of(count: int) -> int:
    """The number of function calls that the analysis of a mesh takes."""
    world = World()
    world.apply([Replace("files", (), tuple(mesh(count)))])
    picture, calls = picture_of(world, []), 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        analyze_picture(picture)
    finally:
        sys.setprofile(None)
    return calls


def test_twice_the_mesh_costs_twice_as_much() -> None:
    calls_of(10)  # descriptors are read once
    assert calls_of(320) < 2.2 * calls_of(160)
