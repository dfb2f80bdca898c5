"""Builds a release: ``python -m tools.release``, or ``tox -e release``; docs/releasing.md has the steps around it.

Writes to dist/: sdist and wheel, the Debian package, an SBOM in CycloneDX's JSON, the pins, and SHA256SUMS of these.
Refuses what is not ready: a section of CHANGELOG.md that is missing or says "unreleased", a lock that pyproject.toml
has outrun, files that are not committed. ``--draft`` builds all the same, and says what it would have refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import build_deb
from tools.lock import CONSTRAINTS, DEMO, LOCK, lock
from tools.release_parts import ROOT, build_python, changes, version


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="folder of the release; it is emptied first")
    parser.add_argument("--draft", action="store_true", help="build what is not ready for a release")
    parser.add_argument("--no-deb", action="store_true", help="without the Debian package, as on other systems")
    arguments = parser.parse_args()
    if found := obstacles():
        print("".join(f"not ready: {each}\n" for each in found), end="", file=sys.stderr)
        if not arguments.draft:
            return 1
    into: Path = arguments.into
    for file in into.glob("mesh[-_]pilot*"):
        file.unlink()
    into.mkdir(parents=True, exist_ok=True)
    sdist, wheel = build_python(into)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], check=True)
    files = [sdist, wheel, sbom(into)]
    if not arguments.no_deb:
        files.append(build_deb.build(into, wheel))
    for file in (LOCK, DEMO, CONSTRAINTS):
        files.append(Path(shutil.copy(file, into)))
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (into / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print("\n".join(str(file) for file in [*files, into / "SHA256SUMS"]))
    return 0


def obstacles() -> list[str]:
    """Why this checkout is not to be released, a line each."""
    found = []
    heading = changes(version()).splitlines()[0]
    if "unreleased" in heading:
        found.append(f"CHANGELOG.md: '{heading}' has no date")
    with tempfile.TemporaryDirectory() as work:
        for file, text in lock(Path(work)).items():
            if text != file.read_text(encoding="utf-8"):
                found.append(f"{file.name} is not what pyproject.toml asks for: tox -e lock")
    status = subprocess.run(["git", "-C", ROOT, "status", "--porcelain"], check=True, capture_output=True, text=True)
    if status.stdout:
        found.append("the checkout has files that are not committed: git status")
    return found


def sbom(into: Path) -> Path:
    """Write the SBOM of what the lock installs, and return its path."""
    path = into / f"mesh-pilot-{version()}.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", LOCK, "--pyproject", ROOT / "pyproject.toml"]
    command += ["--output-reproducible", "--output-format", "JSON"]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    own = made["metadata"]["component"]
    own |= {"version": version(), "purl": f"pkg:pypi/mesh-pilot@{version()}"}  # pyproject.toml leaves it to the package
    path.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
