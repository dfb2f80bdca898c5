"""The folder in which a workload's certificate outlives a restart, with its key and roots.

There are three files, so that programs can read them, and no way to replace three files at once. Therefore all of them
are first written as one (``pending.pem``), which is taken away when the three are in place. Whoever finds it finishes.
Functions here raise OSError, and block.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from tempfile import TemporaryFile

import attrs

from mesh_pilot.agent.identity.material import IdentityMaterial, MaterialError, read_material
from mesh_pilot.identity.trust.private_files import replace, sync_folder

KEY, CHAIN, ROOTS = "key.pem", "cert-chain.pem", "root-cert.pem"
"""The files, as Istio's agent names them (``OUTPUT_CERTS``)."""
PENDING = "pending.pem"

_LEFT_OVER = re.compile(r"\.(key|cert-chain|root-cert|pending)\.pem\.[0-9a-f]{8}")
_PART = re.compile(rb"# (key|chain|roots)\n")


@attrs.frozen
class Found:
    """The content of a folder."""

    material: IdentityMaterial | None
    obtained: float
    """When it was written, in Unix time."""
    problem: str = ""
    """Why there is none though there are files; one line without the advice."""


class CertificateFolder:
    """The files of one workload."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def __repr__(self) -> str:
        return f"<CertificateFolder {self.path}>"

    def create(self) -> None:
        """Make the folder where there is none."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def prepare(self) -> None:
        """Make the folder, and see that it can be written: what cannot be kept must not cost a use of a token."""
        self.create()
        with TemporaryFile(dir=self.path):
            pass

    def load(self) -> Found:
        """The content; files that cannot be used are a ``problem``. Finishes what ``save`` had begun, if it can."""
        self._sweep()
        pending = self._pending()
        if pending is not None:
            obtained = (self.path / PENDING).stat().st_mtime
            try:
                self._finish(pending)
            except OSError as error:
                return Found(pending, obtained, f"{self.path}: {error.strerror}")
            return Found(pending, obtained)
        try:
            key, chain, roots = (_own(self.path / name) for name in (KEY, CHAIN, ROOTS))
            return Found(read_material(key, chain, roots), (self.path / CHAIN).stat().st_mtime)
        except FileNotFoundError as error:
            missing = not any((self.path / name).exists() for name in (KEY, CHAIN))
            return Found(None, 0.0, "" if missing else f"{error.filename} is missing")
        except MaterialError as error:
            return Found(None, 0.0, f"{self.path}: {error}")
        except OSError as error:
            return Found(None, 0.0, f"{error.filename or self.path}: {error.strerror}")

    def save(self, material: IdentityMaterial) -> None:
        """Replace the files. After a crash at any time, ``load`` gives the old ones or these."""
        parts = (("key", material.key), ("chain", material.chain), ("roots", material.roots))
        replace(self.path / PENDING, b"".join(b"# %s\n%s" % (name.encode(), pem) for name, pem in parts))
        self._finish(material)

    def _finish(self, material: IdentityMaterial) -> None:
        replace(self.path / ROOTS, material.roots, 0o644)
        replace(self.path / KEY, material.key)
        replace(self.path / CHAIN, material.chain, 0o644)
        (self.path / PENDING).unlink()
        sync_folder(self.path)

    def _sweep(self) -> None:
        """Remove what a crash left of files that were being written."""
        with contextlib.suppress(OSError):
            for file in self.path.iterdir():
                if _LEFT_OVER.fullmatch(file.name):
                    file.unlink()

    def _pending(self) -> IdentityMaterial | None:
        try:
            _, *parts = _PART.split(_own(self.path / PENDING))
            found = dict(zip(parts[::2], parts[1::2], strict=True))
            return read_material(found[b"key"], found[b"chain"], found[b"roots"])
        except (OSError, MaterialError, ValueError, KeyError):
            return None  # not of ours, or damaged: the three files are what they were, or load says what is wrong


def _own(path: Path) -> bytes:
    """The content of a file that only we or root can have written: whoever wrote a key knows it."""
    with path.open("rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner not in (os.geteuid(), 0):
            raise PermissionError(1, f"it is of user {owner}, who knows the key; remove it or give it to us", str(path))
        return file.read()
