"""The folders that the dumps next to this file become, with their reports. To write them again:

python -m tests.migration.test_goldens
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from mesh_pilot.explain.analysis.command_line import analyze
from mesh_pilot.migration.folder.report import REPORT_FILE, SECRETS
from mesh_pilot.migration.folder.writing import DIGESTS, write_folder
from tests.migration.dumps import HERE, SYSTEMS, dump_of

EXPECTED = HERE / "expected"


def files_in(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != DIGESTS
    }


def write(system: str, folder: Path) -> None:
    write_folder(dump_of(system), folder, is_dry=False, is_forced=False, is_merged=False)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_dump_becomes_the_expected_folder(tmp_path: Path, system: str) -> None:
    write(system, tmp_path / "mesh")
    found, expected = files_in(tmp_path / "mesh"), files_in(EXPECTED / system)
    assert found.keys() == expected.keys()
    for path, text in found.items():
        assert text == expected[path], path


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_result_has_no_error(system: str) -> None:
    folder = EXPECTED / system
    paths = [str(path) for path in folder.iterdir() if path.name not in (REPORT_FILE, SECRETS)]
    found = analyze(paths, io.BytesIO())
    assert [str(each) for each in found.findings if each.level.value == "error"] == []
    assert found.objects == len(dump_of(system).objects)


if __name__ == "__main__":
    for each in SYSTEMS:
        shutil.rmtree(EXPECTED / each, ignore_errors=True)
        write(each, EXPECTED / each)
        (EXPECTED / each / DIGESTS).unlink()
