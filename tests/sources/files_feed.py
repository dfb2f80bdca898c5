"""A folder of YAML files in a test's hand."""

from __future__ import annotations

from pathlib import Path

from mesh_pilot.model.events import Item
from mesh_pilot.sources.files import FileSource, file_source

_TEXT = """\
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata:
  name: {name}
spec:
  hosts: [{name}]
  http:
  - route:
    - destination:
        host: {name}
    timeout: {version}s
"""


def text(name: str, version: int) -> str:
    """A VirtualService; its version is a time-out."""
    return _TEXT.format(name=name, version=version)


def bad_text(name: str) -> str:
    """The same with an unknown field on line 7."""
    return text(name, 1).replace("  http:", "  nonsense:")


class FilesFeed:
    """A file an object."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "config"
        self._away = folder / "away"
        self._folder.mkdir()
        self.source: FileSource = file_source([str(self._folder)])

    async def put(self, name: str, version: int) -> None:
        self._file(name).write_text(text(name, version))

    async def put_bad(self, name: str) -> None:
        self._file(name).write_text(bad_text(name))

    async def remove(self, name: str) -> None:
        self._file(name).unlink()

    async def break_off(self) -> None:
        self._folder.rename(self._away)

    async def restore(self) -> None:
        self._away.rename(self._folder)

    def key(self, name: str) -> tuple[str, ...]:
        return ("config", "VirtualService", "default", name)

    def version(self, item: Item) -> int:
        return version(item)

    def _file(self, name: str) -> Path:
        folder = self._folder if self._folder.exists() else self._away
        return folder / f"{name}.yaml"


def version(item: Item) -> int:
    """The version of a VirtualService made by `text`."""
    return int(item.spec.http[0].timeout.total_seconds())  # type: ignore[union-attr]
