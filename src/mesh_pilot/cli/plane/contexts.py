"""The contexts file: control planes by name, and the current one.

current: prod
contexts:
  prod: {pilot: https://pilot.internal:8080, token_file: ~/.config/mesh-pilot/prod.token, ca: /etc/ssl/mesh.pem}
  here: {pilot: 127.0.0.1:8080}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from mesh_pilot.cli.plane.requests import PlaneClient, plane_address
from mesh_pilot.cli.plane.user_files import contexts_file

FILES = ("token_file", "ca", "certificate", "key")
"""The parts of a context that are paths."""


@attrs.frozen
class Contexts:
    """The content of the file; empty if there is none."""

    file: Path
    current: str = ""
    found: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)

    @classmethod
    def read(cls) -> Contexts:
        """Raises ClickException."""
        file = contexts_file()
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return cls(file)
        except (OSError, UnicodeDecodeError) as error:
            raise click.ClickException(f"{file}: {getattr(error, 'strerror', None) or 'not text'}") from None
        import yaml

        try:
            document = yaml.safe_load(text) or {}
        except yaml.YAMLError as error:
            raise click.ClickException(f"{file}: {' '.join(str(error).split())}") from None
        return cls(file, *_checked(file, document))

    @property
    def names(self) -> list[str]:
        return sorted(self.found)

    def client(self, name: str, token: str = "") -> PlaneClient:
        """The client of a context. Raises ClickException."""
        if name not in self.found:
            there_are = f"there are {', '.join(self.names)}" if self.found else "there is none"
            raise click.ClickException(f"{self.file} has no context {name!r}; {there_are}")
        context = self.found[name]
        files: dict[str, Any] = {part: Path(context[part]).expanduser() for part in FILES if part in context}
        return PlaneClient(context["pilot"], token=token, **files)

    def write(self) -> None:
        """Write the file again, readable for its owner alone. Raises ClickException."""
        import yaml

        content = {"current": self.current, "contexts": {name: dict(self.found[name]) for name in self.names}}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        beside = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                out.write(text)
            beside.replace(self.file)
        except OSError as error:
            raise click.ClickException(f"{self.file}: cannot be written: {error.strerror}") from None


def completed_contexts(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The names that begin so, for a shell; none where the file cannot be read."""
    try:
        return [name for name in Contexts.read().names if name.startswith(incomplete)]
    except click.ClickException:
        return []


def _checked(file: Path, document: Any) -> tuple[str, Mapping[str, Mapping[str, str]]]:
    """The current context and all of them. Raises ClickException."""
    contexts = document.get("contexts", {}) if isinstance(document, dict) else None
    if not isinstance(contexts, dict) or not isinstance(document.get("current", ""), str | None):
        raise click.ClickException(f"{file}: there must be a name as current, and contexts by name")
    for name, context in contexts.items():
        where = f"{file}: context {name}"
        if not isinstance(context, dict) or not isinstance(context.get("pilot"), str):
            raise click.ClickException(f"{where} needs pilot, the address of a control plane")
        for part, value in context.items():
            if part not in ("pilot", *FILES):
                raise click.ClickException(f"{where}: {part!r} is not known; there are pilot, {', '.join(FILES)}")
            if not isinstance(value, str):
                raise click.ClickException(f"{where}: {part} must be text")
        try:
            plane_address.convert(context["pilot"], None, None)
        except click.BadParameter as error:
            raise click.ClickException(f"{where}: pilot: {error.message}") from None
    return document.get("current") or "", {str(name): context for name, context in contexts.items()}
