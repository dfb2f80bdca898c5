"""Changes to this machine that a command makes and tells of: files written or removed, programs called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import click

from mesh_pilot.cli.proxy.install import UNITS

SYSTEMD = Path("/run/systemd/system")
"""Is there where systemd runs (sd_booted(3))."""
PATIENCE_SECONDS = 60.0
"""Timeout for a program to become ready, also for one that starts a proxy."""


def put(path: Path, content: str, mode: int = 0o644, *, group: int | None = None) -> bool:
    """Write a file unless it is there as it shall be, and say so if it replaces another; True if it was written.

    ``group``: of root's file. Raises ClickException.
    """
    from mesh_pilot.identity.trust.private_files import replace

    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before == content:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, content.encode(), mode, own=lambda fd: None if group is None else os.fchown(fd, 0, group))
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    if before is not None:
        click.echo(f"replaced {path}")
    return True


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, if it is there. Raises ClickException."""
    if not path.exists():
        return
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise click.ClickException(f"{error.filename or path}: {error.strerror}") from None
    click.echo(f"removed {path}")


def remove_unit(name: str) -> None:
    """Stop a unit, and remove it. Raises ClickException."""
    path = Path("/") / UNITS / f"{name}.service"
    if not path.exists():
        return
    if SYSTEMD.is_dir():
        call("systemctl", "disable", "--now", name)
    remove(path)
    if SYSTEMD.is_dir():
        call("systemctl", "daemon-reload")


def call(*command: str) -> str:
    """The output of a program of the machine. Raises ClickException with what it says."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    except OSError as error:
        raise click.ClickException(f"{command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise click.ClickException(f"{' '.join(command)} took longer than {PATIENCE_SECONDS:g} s") from None
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise click.ClickException(f"{' '.join(command)}: {said}")
    return done.stdout
