"""docs/gateway-api.md claims what the report of the conformance suite says, which `tox -e conformance` writes."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

DOCS = Path(__file__).resolve().parents[2] / "docs"
REPORT = yaml.safe_load((DOCS / "conformance" / "report.yaml").read_text(encoding="utf-8"))
PAGE = (DOCS / "gateway-api.md").read_text(encoding="utf-8")
OPTIONS = yaml.safe_load(Path(__file__).parents[1].joinpath("conformance", "options.yaml").read_text(encoding="utf-8"))


def listed() -> set[str]:
    """The features in the page's table."""
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGE[PAGE.index("## Features") :], re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(rows)))


def test_no_test_of_a_profile_failed_or_was_skipped() -> None:
    assert [profile["name"] for profile in REPORT["profiles"] if f"`{profile['name']}`" not in PAGE] == []
    assert {profile["name"] for profile in REPORT["profiles"]} == set(OPTIONS["conformanceProfiles"])
    for profile in REPORT["profiles"]:
        for part in ("core", "extended"):
            outcome = profile.get(part, {"result": "success", "statistics": {"Failed": 0, "Skipped": 0}})
            assert outcome["result"] == "success"
            assert outcome["statistics"]["Failed"] == outcome["statistics"]["Skipped"] == 0


def test_the_page_lists_the_features_that_the_report_calls_unsupported() -> None:
    extended = [profile.get("extended", {}) for profile in REPORT["profiles"]]
    supported = {name for each in extended for name in each.get("supportedFeatures", ())}
    unsupported = {name for each in extended for name in each.get("unsupportedFeatures", ())}
    assert set(OPTIONS["supportedFeatures"]) >= supported
    assert listed() - {"InferencePool"} == unsupported
    assert REPORT["gatewayAPIVersion"].removeprefix("v") in PAGE
