"""What pyproject.toml cannot say: a README for an index of packages, and an sdist with the same bytes each time."""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "src/mesh_pilot/__init__.py").read_text("utf-8"), re.M)
assert VERSION is not None


def readme() -> str:
    """README.md with links that lead from anywhere to the files of this version, which an index does not have."""
    source = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
    text = (HERE / "README.md").read_text("utf-8")
    return re.sub(r"\]\((?![a-z]+:|#)([^)]+)\)", rf"]({source}/blob/v{VERSION[1]}/\1)", text)


class Sdist(sdist):
    """The archive is a function of the files and of ``SOURCE_DATE_EPOCH``, where that is set."""

    def make_archive(
        self, base_name: str, format: str, root_dir: str | None = None, base_dir: str = "", **owner: str
    ) -> str:
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch is None or format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, **owner)

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = int(epoch), 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        name = f"{base_name}.tar.gz"
        with (
            Path(name).open("wb") as file,
            gzip.GzipFile("", "wb", 9, file, int(epoch)) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(Path(root_dir or ".") / base_dir, base_dir, filter=plain)  # sorted within each folder
        return name


setup(long_description=readme(), long_description_content_type="text/markdown", cmdclass={"sdist": Sdist})
