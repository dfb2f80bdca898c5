"""The findings of an analysis as JSON, SARIF (for code hosts) and JUnit (for CI servers)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from mesh_pilot import __version__
from mesh_pilot.explain.analysis.codes import CODES
from mesh_pilot.explain.analysis.command_line import Analysis, Finding, IgnoredObjects, Note, finding_of
from mesh_pilot.explain.analysis.findings import Level

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_HOME = "https://github.com/mesh-pilot/mesh-pilot"
_SARIF_LEVELS = {Level.ERROR: "error", Level.WARNING: "warning", Level.INFO: "note"}
_LISTS = {Level.ERROR: "errors", Level.WARNING: "warnings", Level.INFO: "infos"}
_PLACE = re.compile(r"(.*?)(?::(\d+))?")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_json(found: Analysis) -> str:
    """JSON with a list for each level."""
    value = {
        "objects": found.objects,
        **{name: [_row(finding) for finding in found.of(level)] for level, name in _LISTS.items()},
        "suppressed": found.suppressed,
        "ignored": [{"apiVersion": k.api_version, "kind": k.kind, "where": list(k.where)} for k in found.ignored],
        "notes": [{"where": note.where, "what": note.what} for note in found.notes],
    }
    return json.dumps(value, indent=2, ensure_ascii=False)


def of_plane(value: Mapping[str, Any]) -> Analysis:
    """The analysis that a control plane's API answered."""
    findings = [finding_of(row, level) for level, name in _LISTS.items() for row in value.get(name, ())]
    ignored = [IgnoredObjects(k["apiVersion"], k["kind"], tuple(k["where"])) for k in value.get("ignored", ())]
    notes = [Note(note["where"], note["what"]) for note in value.get("notes", ())]
    return Analysis(value["objects"], tuple(findings), value.get("suppressed", 0), tuple(ignored), tuple(notes))


def _row(finding: Finding) -> dict[str, str]:
    return {
        "where": finding.where,
        "object": finding.object,
        "field": finding.field,
        "reason": finding.reason,
        "code": finding.code,
        "level": finding.level.value,
        "fix": finding.fix,
        "doc": finding.doc,
    }


def as_sarif(found: Analysis) -> str:
    """SARIF 2.1.0, with a rule for each code that is used."""
    codes = sorted({finding.code for finding in found.findings})
    driver = {
        "name": "mesh-pilot analyze",
        "version": __version__,
        "informationUri": _HOME,
        "rules": [_rule(code) for code in codes],
    }
    results = [_result(finding, codes.index(finding.code)) for finding in found.findings]
    runs = [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}]
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": runs}, indent=2)


def _rule(code: str) -> dict[str, object]:
    type = CODES[code]
    return {
        "id": code,
        "name": type.name,
        "shortDescription": {"text": type.description},
        "help": {"text": type.fix},
        "helpUri": f"{_HOME}/blob/main/{type.doc}",
        "defaultConfiguration": {"level": _SARIF_LEVELS[type.level]},
    }


def _result(finding: Finding, index: int) -> dict[str, object]:
    match = _PLACE.fullmatch(finding.where)
    file, line = match.groups() if match is not None else (finding.where, None)
    about = ": ".join(filter(None, (finding.object, finding.field, finding.reason)))
    region = {"region": {"startLine": int(line)}} if line else {}
    result: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _SARIF_LEVELS[finding.level],
        "message": {"text": f"{about} {finding.fix}".strip()},
    }
    if file:
        place = {"physicalLocation": {"artifactLocation": {"uri": _uri(file)}, **region}}
        result["locations"] = [place]
    return result


def _uri(path: str) -> str:
    from urllib.parse import quote

    relative = quote(path.removeprefix("./"))
    return f"file://{relative}" if relative.startswith("/") else relative


def as_junit(found: Analysis) -> str:
    """JUnit's XML: a test case for each finding, and one for the objects that are good."""
    failed = [finding for finding in found.findings if finding.level is not Level.INFO]
    suite = ElementTree.Element(
        "testsuite", name="mesh-pilot analyze", tests=str(len(failed) + 1), failures=str(len(failed)), errors="0"
    )
    ElementTree.SubElement(suite, "testcase", classname="mesh-pilot.analyze", name=f"{found.objects} objects are good")
    for finding in failed:
        name = _xml(" ".join(filter(None, (finding.code, finding.object or finding.where, finding.field))))
        case = ElementTree.SubElement(suite, "testcase", classname=f"mesh-pilot.analyze.{finding.code}", name=name)
        message = _xml(finding.reason)
        failure = ElementTree.SubElement(case, "failure", type=finding.level.value, message=message)
        failure.text = _xml(f"{finding}\n{finding.fix}\n{finding.doc}")
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _NOT_IN_XML.sub("\ufffd", text)
