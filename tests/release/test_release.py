"""Wheel, sdist and SBOM: the same bytes each time, complete, and installed as users do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.lock import LOCK, pins
from tools.release_parts import build_python, changes, version

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_python(tmp_path_factory.mktemp("dist"))


def test_a_second_build_has_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    again = build_python(tmp_path)
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in built]


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {name.removeprefix("src/") for name in tracked.split() if not name.endswith("/samples/demo")}
    samples = (ROOT / "samples/demo").rglob("*")
    wanted |= {f"mesh_pilot/cli/{path.relative_to(ROOT)}" for path in samples if path.is_file()}
    assert names == wanted


def test_the_sdist_has_licence_and_changes_and_no_tests(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "Containerfile", "requirements.lock", "constraints.txt"} <= names
    assert not {name for name in names if name.startswith(("tests/", "bench/", ".ci"))}


def test_an_index_takes_the_metadata_and_its_links_lead_somewhere(built: tuple[Path, Path]) -> None:
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        text = wheel.read(name).decode()
    assert f"Version: {version()}\n" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 30
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.parametrize("tool", ["pip", "uv", "pipx"])
def test_it_installs_as_from_an_index(built: tuple[Path, Path], tmp_path: Path, tool: str) -> None:
    wanted, links = "mesh-pilot[demo]", ["--find-links", str(built[1].parent)]
    places = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin"}
    environment = {**os.environ, **{name: str(tmp_path / path) for name, path in places.items()}}
    constraints = ["-c", str(ROOT / "constraints.txt")]
    if tool == "pip":
        subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
        command = [str(tmp_path / "bin/pip"), "install", "-q", *links, *constraints, wanted]
    elif tool == "uv":
        python = ["--python", sys.executable]
        command = [sys.executable, "-m", "uv", "tool", "install", "-q", *python, *links, *constraints, wanted]
    else:
        command = [
            sys.executable,
            "-m",
            "pipx",
            "install",
            "-q",
            f"--pip-args={' '.join([*links, *constraints])}",
            wanted,
        ]
    subprocess.run(command, check=True, env=environment)
    program = tmp_path / "bin/mesh-pilot"
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    assert said.startswith(f"mesh-pilot {version()} ")
    assert (program.resolve().parent / "envoy").exists()


def test_the_sbom_has_every_package_of_the_lock(tmp_path: Path) -> None:
    from tools.release import sbom

    made = json.loads(sbom(tmp_path).read_text(encoding="utf-8"))
    listed = {f"{each['name']}=={each['version']}" for each in made["components"]}
    assert listed == {pin.partition(" ;")[0] for pin in pins(LOCK)}
    assert made["metadata"]["component"]["version"] == version()


def test_the_changelog_has_a_section_of_this_version() -> None:
    assert changes(version()).startswith(f"## {version()}")
    with pytest.raises(SystemExit, match=r"no section of 9\.9\.9"):
        changes("9.9.9")


def test_a_release_is_refused_with_reasons_and_a_draft_has_checksums_of_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.release", "--no-deb", "--into", str(tmp_path)]
    if "unreleased" in changes(version()).splitlines()[0]:
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (refused.returncode, list(tmp_path.iterdir())) == (1, [])
        assert "not ready: CHANGELOG.md: " in refused.stderr
    subprocess.run([*command, "--draft"], cwd=ROOT, check=True)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)
    summed = {line.split()[1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()}
    assert summed == {path.name for path in tmp_path.iterdir()} - {"SHA256SUMS"}
