"""The place that a proxy's configuration is read from: the control plane, a live Envoy, or a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import attrs
import click

from mesh_pilot.cli.lib.options import one_line
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.cli.plane.completion import proxies
from mesh_pilot.cli.plane.envoy_admin import EnvoyAdmin, admin_address

if TYPE_CHECKING:
    from mesh_pilot.explain.inspection.dump import ConfigDump

F = TypeVar("F", bound=Callable[..., Any])


@attrs.frozen
class DumpSource:
    """A proxy's dump, read when it is asked for. Every method raises ClickException, in one line, if it cannot be."""

    proxy: str
    """A name for the control plane; empty: it is not asked."""
    plane: PlaneClient
    admin: EnvoyAdmin | None = None
    file: str = ""
    """A path, or ``-`` for standard input."""

    @property
    def is_plane(self) -> bool:
        """True if the dump is what the control plane sent, not what an Envoy has."""
        return self.admin is None and not self.file

    def document(self) -> Any:
        """The dump as it came, as JSON."""
        if self.is_plane:
            return plane_document(self.plane, self.proxy)
        where = self._shown_file if self.admin is None else f"the answer of {self.admin.address}"
        text = self._text() if self.admin is None else self.admin.get("/config_dump?include_eds")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise click.ClickException(f"{where} is not JSON: {error}") from None

    def dump(self, *, health: bool = False) -> ConfigDump:
        """The dump; `health`: with the state of hosts, if there is a live Envoy to tell it."""
        from mesh_pilot.explain.inspection.dump import DumpError, read_dump, with_made_from

        if self.is_plane:
            return plane_dump(self.plane, self.proxy)
        where, text = self._shown_file, b""
        if self.admin is not None:
            where = f"the answer of {self.admin.address}"
            text = self.admin.get("/config_dump?include_eds")
            if health:
                text += b"\n" + self.admin.get("/clusters?format=json")
        else:
            text = self._text()
        with one_line(DumpError):
            found = read_dump(text, where)
        return with_made_from(found, plane_dump(self.plane, self.proxy)) if self.proxy else found

    @property
    def _shown_file(self) -> str:
        return "standard input" if self.file == "-" else self.file

    def _text(self) -> bytes:
        try:
            return sys.stdin.buffer.read() if self.file == "-" else Path(self.file).read_bytes()
        except OSError as error:
            raise click.ClickException(f"{self._shown_file}: can't be read: {error.strerror}") from None


def plane_document(plane: PlaneClient, proxy: str) -> Any:
    """The dump of a proxy that the control plane has, as JSON."""
    return plane.get(f"/proxies/{quote(proxy, safe='')}/config_dump")


def plane_dump(plane: PlaneClient, proxy: str) -> ConfigDump:
    """The resources that the control plane sent to a proxy."""
    from mesh_pilot.explain.inspection.dump import dump_of

    found = dump_of(plane_document(plane, proxy))
    if found is None:
        raise click.ClickException(f"{plane.address} gives no config dump: is it a mesh-pilot of this version?")
    return found


def _proxy_argument(command: F) -> F:
    return click.argument("proxy", required=False, metavar="[PROXY]", shell_complete=proxies)(command)


def reads_a_dump(command: F) -> F:
    """The argument PROXY and the flags that say where its dump is; the command gets ``source``, a DumpSource."""

    @_proxy_argument
    @click.option("--file", "-f", metavar="DUMP", help="Read the dump from a file, - for standard input.")
    @_admin_option("Read it from a live Envoy's admin interface: HOST:PORT, or the path of a Unix socket.")
    @asks_a_plane
    @wraps(command)
    def wrapped(
        *args: Any, proxy: str | None, file: str | None, admin: str | None, plane: PlaneClient, **options: Any
    ) -> Any:
        if file and admin:
            raise click.UsageError("--file and --admin exclude each other")
        if not (proxy or file or admin):
            raise click.UsageError("say which proxy: its name, --admin of a live Envoy, or --file with a dump")
        source = DumpSource(proxy or "", plane, EnvoyAdmin(admin) if admin else None, file or "")
        return command(*args, source=source, **options)

    return wrapped  # type: ignore[return-value]  # click's decorators keep the function's type


def _admin_option(text: str) -> Callable[[F], F]:
    return click.option("--admin", metavar="ADDRESS", callback=admin_address, help=text)
