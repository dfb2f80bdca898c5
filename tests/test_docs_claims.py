"""Claims of the documentation beyond flags: what is not carried out, never compared, absent; and the indexes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, envoy_bootstrap
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigExtensionProvider
from mesh_pilot.cli.explain.analysis_output import _row
from mesh_pilot.consul.mesh.entries import REASONS
from mesh_pilot.explain.analysis.command_line import Finding
from mesh_pilot.explain.analysis.findings import Level
from mesh_pilot.istio import kinds
from mesh_pilot.istio.reading.field_warnings import WITHOUT_EFFECT
from mesh_pilot.kubernetes.source import ConfigSelection
from mesh_pilot.model.resource import RESOURCE_TYPES
from tests.support.golden import xdsdiff
from tests.support.source import pages
from tools.site import doors, foreign

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))


def part(page: str, begin: str, end: str) -> str:
    """The text of a page from one phrase to the next."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text[text.index(begin) : text.index(end, text.index(begin))]


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of its tables, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {i + step for i, line in enumerate(lines) if line.startswith("|---") for step in (-1, 0)}
    return [[cell.strip() for cell in line.strip("|").split("|")] for i, line in enumerate(lines) if i not in heads]


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


@cache
def anchors(page: Path) -> set[str]:
    """Where a link can lead within a page, by GitHub's rule for headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_to_headings_lead_to_one() -> None:
    lost = []
    for page in pages():
        links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
        lost += [(page, file, t) for file, t in links if t not in anchors(page.parent / file if file else page)]
    assert lost == []


def test_every_page_stands_behind_a_door() -> None:
    found = doors(DOCS)
    listed = [*found, *(file for _, pages in found.values() for _, file in pages)]
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md") if page.name != "README.md")


def test_the_tasks_of_a_newcomer_are_two_clicks_from_the_readme() -> None:
    """The README leads to the list of tasks, the doors and the glossary; the list leads to the pages."""
    clicks = re.findall(r"\]\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"README.md", "glossary.md", *doors(DOCS)} <= set(clicks)
    tasks = re.findall(r"^\| (?!\|)(.+?) \| .*\]\(", (DOCS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(tasks) == 10


def test_what_a_site_would_load_from_another_server_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import url(https://a.test/font.css)")
    (tmp_path / "index.html").write_text(
        '<a href="https://b.test"><link rel="canonical" href="https://c.test/"><script src=d.js></script>'
        '<link rel=stylesheet href="//e.test/e.css"><script src=https://f.test/f.js></script><pre class="mermaid">'
    )
    found = [each.partition("//")[2].strip('">') for each in foreign(tmp_path)]
    assert sorted(found) == ["", "a.test/font.css", "e.test/e.css", "f.test/f.js"]


def test_decisions_are_numbered_one_by_one() -> None:
    assert [page.name[:3] for page in DECISIONS] == [f"{number:03}" for number in range(1, len(DECISIONS) + 1)]
    for page in DECISIONS:
        assert page.read_text(encoding="utf-8").startswith(f"# {page.name[:3]}: ")


READ = part("istio-differences.md", "Kinds and fields that are read:", "Objects that are not read:")


def test_extension_providers_without_effect_are_listed() -> None:
    (row,) = (row for row in rows(READ) if row[0].startswith("extension providers "))
    assert names(row[0]) == set(WITHOUT_EFFECT[MeshConfigExtensionProvider])


def test_objects_that_are_ignored_with_a_warning_are_listed() -> None:
    table = rows(part("istio-differences.md", "Objects that are not read:", "The warnings for ignored objects"))
    everything = {name for row in table if row[1].startswith("all") for name in names(row[0])}
    single = {
        (group, kind)
        for row in table
        if not row[1].startswith("all")
        for group in [*names(row[0]), *([""] if "core" in row[0] else [])]
        for kind in names(row[1])
    }
    assert everything == set(kinds._BY_GROUP)
    assert set(kinds._BY_KIND) <= single
    assert {kind for _, kind in single} == {kind for _, kind in kinds._BY_KIND}


def test_what_is_advised_in_place_of_fields_of_consul_is_a_kind_that_there_is() -> None:
    advised = {name for reason in REASONS.values() if reason for name in re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", reason)}
    assert advised <= kinds.KINDS.keys()
    assert "EnvoyFilter" in str(REASONS["maxrequestheaderskb"])


def test_a_kubernetes_as_a_config_source_has_the_kinds_that_files_may_hold_and_no_credentials() -> None:
    selection = ConfigSelection()
    assert (selection.kinds, selection.secrets, selection.mesh) == (kinds.KINDS, False, None)
    for page in ("kubernetes-config.md", "mcp.md", "istio-differences.md"):
        assert "that files may hold" in (DOCS / page).read_text(encoding="utf-8")


def test_what_the_comparison_drops_is_listed() -> None:
    table = rows(part("istio-differences.md", "## Never compared", "## Not carried out yet"))
    dropping = [rule for rule, kind in xdsdiff.RULES.items() if kind == "a"]
    assert [row[0] for row in table] == [f"`{rule}`" for rule in dropping]


def test_a_bootstrap_has_what_is_said_and_no_more() -> None:
    bootstrap = envoy_bootstrap(EnvoyNode("web-1"), "127.0.0.1:15010")
    parts = {"node", "admin", "dynamic_resources", "static_resources", "layered_runtime", "cluster_manager"}
    assert set(bootstrap) == parts
    assert bootstrap["cluster_manager"].keys() == {"load_stats_config"}
    assert set(bootstrap["static_resources"]) == {"clusters"}
    (cluster,) = bootstrap["static_resources"]["clusters"]
    assert cluster["name"] == "xds-grpc"


def test_the_types_that_pushes_are_counted_by_are_those_that_are_served() -> None:
    (said,) = re.findall(r"^- `pilot_xds_pushes\{type\}`: (.*)$", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert names(said) - {"type"} == {each.short.lower() for each in RESOURCE_TYPES.values()}


def test_the_keys_of_a_finding_are_those_that_are_printed() -> None:
    keys = set(_row(Finding(Level.ERROR, "IST0106", "a.yaml:1", "no")))
    assert names(part("analysis.md", "whose entries have", "; and `objects`")) == keys


def test_what_istio_changed_is_held_by_tests_recordings_and_pages_that_there_are() -> None:
    differs = rows(part("istio-differences.md", "## Changes of Istio since 1.14", "## Security kinds"))
    for version, _, verdict in differs:
        assert verdict and re.fullmatch(r"1\.(1[5-9]|2\d|3[012])(, 1\.(1[5-9]|2\d|3[012]))*", version), version
    changes = yaml.safe_load((ROOT / "tests" / "istio_releases.yaml").read_text(encoding="utf-8"))
    assert {change for _, change, _ in differs} == changes["not followed"].keys()
    assert [*changes] == [*(f"1.{number}" for number in range(15, 33)), "not followed"]
    holders = [held for of_version in changes.values() for held in of_version.values()]
    assert 80 <= len(holders) <= 140
    for held in holders:
        if named := re.fullmatch(r"([\w/]+\.py)::(test_\w+)", held):
            assert f"def {named[2]}(" in (ROOT / "tests" / named[1]).read_text(encoding="utf-8"), held
        elif recorded := re.fullmatch(r"recording ([\w-]+)", held):
            assert (ROOT / "tests" / "golden" / recorded[1]).is_dir(), held
        else:
            page, _, title = held.partition("#")
            assert (ROOT / page).is_file() and (not title or title in anchors(ROOT / page)), held
