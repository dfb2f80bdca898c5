"""Fetches the libraries of the web page: files as their authors built them, checked against checksums.

    python -m tools.get_page_libraries https://REGISTRY     # writes src/mesh_pilot/ops/page/static/vendor

REGISTRY serves packages of JavaScript, as ``/PACKAGE/-/PACKAGE-VERSION.tgz``.

The only changes: a bare name that is imported becomes the file next to, and comments that name source maps go.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
import urllib.request
from pathlib import Path

import attrs

FOLDER = Path(__file__).parents[1] / "src" / "mesh_pilot" / "ops" / "page" / "static" / "vendor"


@attrs.frozen
class Library:
    """A file of a package, and what it becomes."""

    package: str
    version: str
    member: str
    file: str
    licence: str
    sha256: str
    """Of the file as it is served."""

    @property
    def path(self) -> str:
        """The path of the package at a registry."""
        return f"/{self.package}/-/{self.package}-{self.version}.tgz"


LIBRARIES = (
    Library(
        "preact",
        "11.2.0",
        "dist/preact.mjs",
        "preact.js",
        "MIT",
        "225d7a773766e6fb2cfcc45274fe41d2059f5782f3f2c4569aa5132a2d3a2902",
    ),
    Library(
        "preact",
        "11.2.0",
        "hooks/dist/hooks.mjs",
        "hooks.js",
        "MIT",
        "5c65ab263688d0805862fd0807c779af02c2799c44fda0873dfcb870d0da70a0",
    ),
    Library(
        "htm",
        "3.1.1",
        "dist/htm.module.js",
        "htm.js",
        "Apache-2.0",
        "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    ),
)


def served(text: str) -> str:
    """A built file as it is served."""
    text = re.sub(r'from *"preact"', 'from"./preact.js"', text)
    return re.sub(r"^//# sourceMappingURL=.*\n?", "", text, flags=re.MULTILINE)


def _member(archive: tarfile.TarFile, name: str) -> str:
    found = archive.extractfile(f"package/{name}")
    assert found is not None
    return found.read().decode()


def main(registry: str) -> int:
    licences: dict[str, str] = {}
    for each in LIBRARIES:
        with (
            urllib.request.urlopen(registry.rstrip("/") + each.path, timeout=60) as answer,
            tarfile.open(fileobj=io.BytesIO(answer.read())) as archive,
        ):
            body = served(_member(archive, each.member)).encode()
            licences[f"{each.package} {each.version}, {each.licence}"] = _member(archive, "LICENSE")
        if (digest := hashlib.sha256(body).hexdigest()) != each.sha256:
            print(f"{each.path}: {each.member} has the checksum {digest}, not {each.sha256}", file=sys.stderr)
            return 1
        (FOLDER / each.file).write_bytes(body)
    texts = (f"{title}\n\n{text.strip()}\n" for title, text in licences.items())
    (FOLDER / "LICENSES.txt").write_text(("\n" + "-" * 80 + "\n\n").join(texts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
