"""What the commands of a release share: the version, its changes, its time, wheel and sdist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def version() -> str:
    """The version, which is stated in the package alone."""
    text = (ROOT / "src/mesh_pilot/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def changes(of: str) -> str:
    """The section of a version in CHANGELOG.md, from its heading. Raises SystemExit where there is none."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(of)}(?= |$).*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section of {of}: begin one with '## {of}'")
    return found[0]


def epoch() -> int:
    """The time that archives carry: ``SOURCE_DATE_EPOCH``, else that of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def build_python(into: Path) -> tuple[Path, Path]:
    """Build the sdist and, of that, the wheel. Returns both paths."""
    command = [sys.executable, "-m", "build", "--outdir", str(into), str(ROOT)]
    done = subprocess.run(
        command, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return into / f"mesh_pilot-{version()}.tar.gz", into / f"mesh_pilot-{version()}-py3-none-any.whl"
