"""A live Envoy's admin interface, for the commands that look into one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click

ADMIN = "127.0.0.1:15000"
"""The admin address of an Envoy that ``mesh-pilot proxy`` runs, unless it was told another."""


@attrs.frozen
class EnvoyAdmin:
    """The admin interface of one Envoy. Every method raises ClickException, in one line, if there is no good answer."""

    address: str
    """``host:port``, or ``unix:///path``, or the path of a Unix socket."""
    timeout_seconds: float = 10.0

    def get(self, path: str) -> bytes:
        return self._ask("GET", path)

    def post(self, path: str, **query: str) -> bytes:
        return self._ask("POST", path, query)

    def _ask(self, method: str, path: str, query: dict[str, str] | None = None) -> bytes:
        import httpx

        where = f"Envoy's admin interface at {self.address}"
        socket = (
            self.address.removeprefix("unix:").removeprefix("//") if self.address.startswith(("unix:", "/")) else None
        )
        base = "http://envoy" if socket is not None else f"http://{self.address}"
        if socket is not None and not Path(socket).exists():
            raise click.ClickException(f"cannot ask {where}: there is no such socket; it is on the Envoy's own machine")
        try:
            transport = httpx.HTTPTransport(uds=socket)
            with httpx.Client(transport=transport, timeout=self.timeout_seconds, trust_env=False) as client:
                reply = client.request(method, base + path, params=query)
        except httpx.ConnectError as error:
            hint = "it answers on its own machine only; --admin takes its address"
            raise click.ClickException(f"cannot ask {where}: {error}; {hint}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise click.ClickException(f"cannot ask {where}: {error or type(error).__name__}") from None
        if reply.status_code != 200:
            said = " ".join(reply.text[:200].split())
            raise click.ClickException(f"{where} answers {path} with {reply.status_code}: {said}")
        return reply.content


def admin_address(_: click.Context, param: click.Parameter, value: Any) -> str | None:
    """The value of ``--admin``: a host and port, or a Unix socket."""
    from mesh_pilot.cli.lib.options import address

    if value is None or str(value).startswith("/"):
        return None if value is None else str(value)
    checked = address.convert(value, param, None)
    return f"127.0.0.1{checked}" if str(checked).startswith(":") else str(checked)
