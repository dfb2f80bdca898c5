"""The Containerfile: what it copies is there, and buildah builds and runs both of its images.

No registry of images is asked: a small Debian in a folder stands for the base image.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.binaries import require_binary
from tests.support.debian import control_plane_becomes_ready, require_debian
from tools.release_parts import version

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")


def test_what_the_containerfile_copies_is_in_the_checkout_and_let_through() -> None:
    let_through = re.findall(r"^!(.+)$", (ROOT / ".containerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE) for name in line.split()]
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


@pytest.mark.slow
@pytest.mark.timeout(1200)
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
