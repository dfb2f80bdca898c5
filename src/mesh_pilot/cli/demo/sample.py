"""The demo's own copy of the sample mesh, on free ports, and the edits the story makes to it."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree

import attrs


@attrs.define
class Sample:
    """A copied sample. Edits are atomic: a temporary file, renamed over the old one."""

    folder: Path
    ports: dict[int, int]
    """The ports written in the sample, and those that stand in the copy instead."""

    host: str = "reviews.shop.internal"
    """The name of the service."""

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def mesh(self) -> Path:
        return self.folder / "mesh.yaml"

    @property
    def traffic(self) -> Path:
        return self.config / "traffic.yaml"

    def take_services_from(self, host: str) -> None:
        """Leave the service itself to a registry that calls it by another host; the rules for it stay."""
        (self.config / "services.yaml").unlink()
        text = self.traffic.read_text(encoding="utf-8")
        self.traffic.write_text(text.replace(self.host, host), encoding="utf-8")
        self.host = host

    def edit(self, file: Path, *changes: tuple[str, str]) -> None:
        """Replace texts in a file, each of which must be there."""
        text = file.read_text(encoding="utf-8")
        for old, new in changes:
            if old not in text:
                raise ValueError(f"{file.name} has no {old!r}")
            text = text.replace(old, new, 1)
        fresh = file.with_name(f".{file.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)


def copy_sample(folder: Path) -> Sample:
    """Copy the sample that is part of the package to ``folder``, with its ports replaced by free ones."""
    with as_file(files("mesh_pilot.cli") / "samples" / "demo") as original:
        copytree(original, folder, dirs_exist_ok=True)
    texts = {path: path.read_text(encoding="utf-8") for path in (folder / "config").glob("*.yaml")}
    written = sorted({int(port) for text in texts.values() for port in _PORT.findall(text)})
    ports = dict(zip(written, _free_ports(len(written)), strict=True))
    for path, text in texts.items():
        path.write_text(_PORT.sub(lambda found: str(ports[int(found[0])]), text), encoding="utf-8")
    return Sample(folder, ports)


_PORT = re.compile(r"\b9[01]\d\d\b")
"""Every port of the sample is between 9000 and 9199, and nothing else there looks so."""


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
