"""Codes and docs/analysis.md are made of one table; each example of the table has its problem, and not when fixed."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

import mesh_pilot
from mesh_pilot.cli.explain.analyze import as_text
from mesh_pilot.explain.analysis.codes import CODES
from mesh_pilot.explain.analysis.command_line import Finding, analyze
from tools import gen_codes

PAGE = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text(encoding="utf-8")
EXAMPLES = {entry["code"]: entry["example"] for entry in gen_codes.entries() if "example" in entry}
LIVE_ONLY = {"MP0014", "MP0037", "MP0038", "MP0040", "MP0041", *(f"MP00{number}" for number in range(42, 47))}
"""Codes that only a live plane knows."""
WITHOUT_EXAMPLE = LIVE_ONLY | {"IST0001", "MP0007", "MP0025", "MP0027"}
NOTHING_TO_WRITE = {"MP0005", "IST0161"}
"""Codes whose example is not fixed by another line."""


def sections(page: str) -> dict[str, str]:
    """The texts under the headings of the third level."""
    parts = re.split(r"^### (.*)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fixed(text: str) -> str:
    """The example with its comments followed."""
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if added := re.match(r"\s*# add: (.*)$", line):
            lines.append(indent + added[1])
        elif change := re.search(r"  # fix: (.*)$", line):
            lines += [] if change[1] == "remove" else [indent + change[1]]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def findings(text: str, folder: Path) -> tuple[Finding, ...]:
    (folder / "example.yaml").write_text(text)
    return analyze([str(folder / "example.yaml")], io.BytesIO()).findings


def marked_lines(text: str) -> list[int]:
    return [n for n, line in enumerate(text.splitlines(), 1) if re.search("# (fix|add):", line)]


def test_code_and_page_are_those_that_the_table_gives() -> None:
    entries = gen_codes.entries()
    assert gen_codes.MODULE.read_text(encoding="utf-8") == gen_codes.module(entries), "run python -m tools.gen_codes"
    assert gen_codes.page(PAGE, entries) == PAGE, "run python -m tools.gen_codes"
    assert {entry["code"] for entry in entries} - EXAMPLES.keys() == WITHOUT_EXAMPLE
    assert [entry["code"] for entry in entries if entry.get("shown") and not gen_codes.changes(entry["example"])] == []


def test_something_gives_each_code() -> None:
    files = (Path(mesh_pilot.__file__).parent / "explain").rglob("*.py")
    named = {word for path in files if path.name != "codes.py" for word in re.findall(r"\w+", path.read_text("utf-8"))}
    assert {entry["constant"] for entry in gen_codes.entries()} <= named


@pytest.mark.parametrize("code", sorted(CODES.keys() - WITHOUT_EXAMPLE))
def test_an_example_has_its_problem_until_it_is_fixed(code: str, tmp_path: Path) -> None:
    text = EXAMPLES[code]
    found = [finding for finding in findings(text, tmp_path) if finding.code == code]
    assert found
    assert all(re.fullmatch(r".*/example\.yaml:\d+", finding.where) for finding in found)
    if code in NOTHING_TO_WRITE:
        return
    assert marked_lines(text)
    left = findings(fixed(text), tmp_path)
    assert not [finding for finding in left if finding.code == code]
    assert not [finding for finding in left if finding.code in ("IST0106", "MP0002", "MP0009")]


MISTAKES = sections(Path(__file__).with_name("mistakes.md").read_text(encoding="utf-8"))


def test_there_are_ten_mistakes_and_the_page_has_their_codes() -> None:
    assert len(MISTAKES) == 10
    listed = PAGE[PAGE.index("Newcomers' mistakes:") : PAGE.index("## What is read")]
    first = {re.search(r"\[((?:IST|MP)\d+)\]", text)[1] for text in MISTAKES.values()}  # type: ignore[index]
    assert set(re.findall(r"\[((?:IST|MP)\d+)\]", listed)) == first
    quoted = PAGE[PAGE.index("    example.yaml:9:") : PAGE.index("\n\nNewcomers' mistakes")]
    assert "\n".join(line[4:] for line in quoted.splitlines()) in MISTAKES["1. A wrong host"]


@pytest.mark.parametrize("title", MISTAKES)
def test_a_newcomers_mistake_is_found_at_its_line_and_gone_when_fixed(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section = MISTAKES[title]
    (text,), (printed,) = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("yaml", "console"))
    Path("example.yaml").write_text(text)
    Path("secrets").mkdir()
    secrets = ["secrets"] if "--secrets-dir" in printed else []
    found = analyze(["example.yaml"], io.BytesIO(), secrets=secrets)
    assert as_text(found) == printed.partition("\n")[2].rstrip()
    first = next(n for n, line in enumerate(text.splitlines(), 1) if "# fix:" in line)
    lines = {int(finding.where.rpartition(":")[2]) for finding in found.findings}
    assert min(abs(first - line) for line in lines) <= 3
    Path("example.yaml").write_text(fixed(text))
    left = analyze(["example.yaml"], io.BytesIO(), secrets=secrets).findings
    assert not {finding.code for finding in found.findings} & {finding.code for finding in left} or secrets
