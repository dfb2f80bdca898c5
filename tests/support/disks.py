"""Disks that are small, full or read-only: file systems in memory, mounted for a test. They need root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small file system at the folder for the length of the block."""
    folder.mkdir(mode=0o700)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "none", folder], capture_output=True)
    if done.returncode:
        pytest.skip(f"may not mount: {done.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder that takes no file for the length of the block; those that are open for writing do not keep it so."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(file: Path) -> None:
    """Take all the space there is."""
    with file.open("wb", buffering=0) as out:
        for size in (4096, 1):
            try:
                while out.write(b"x" * size):
                    pass
            except OSError:
                continue
