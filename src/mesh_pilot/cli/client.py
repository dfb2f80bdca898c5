"""The client of a control plane's API, for the commands that ask one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import attrs
import click

from mesh_pilot.cli.options import address

F = TypeVar("F", bound=Callable[..., Any])

BASE = "/api/v1"


@attrs.frozen
class PlaneClient:
    """A control plane's HTTP port. Every method raises ClickException, in one line, if there is no good answer."""

    address: str
    """``host:port`` of its --http-addr."""
    timeout_seconds: float = 10.0

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at a path beneath ``/api/v1``; parameters that are None are left out, lists are repeated."""
        return self.ask("GET", path, query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self.ask("POST", path, query, body)

    def ask(self, method: str, path: str, query: dict[str, Any], body: Any = None) -> Any:
        import httpx

        url = f"http://{self.address}{BASE}{path}"
        wanted = {name: value for name, value in query.items() if value is not None}
        try:
            reply = httpx.request(method, url, params=wanted, json=body, trust_env=False, timeout=self.timeout_seconds)
        except httpx.ConnectError as error:
            raise click.ClickException(f"cannot ask {url}: {error}; is it running?") from None
        except httpx.HTTPError as error:
            raise click.ClickException(f"cannot ask {url}: {error}") from None
        if reply.status_code != 200:
            raise click.ClickException(_error(reply))
        return reply.json()


def _error(reply: Any) -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"{reply.url} answers {reply.status_code}"


def asks_a_plane(command: F) -> F:
    """The flags that say which control plane is asked; the command gets them as ``plane``, a PlaneClient."""

    @click.option("--pilot", type=address, default="127.0.0.1:8080", help="The control plane's --http-addr.")
    @wraps(command)
    def wrapped(*args: Any, pilot: str, **options: Any) -> Any:
        return command(*args, plane=PlaneClient(pilot), **options)

    return wrapped  # type: ignore[return-value]  # click's decorators keep the function's type


def asks_planes(command: F) -> F:
    """As ``asks_a_plane``, for several; the command gets ``planes``, a sequence of PlaneClients that is never empty."""

    @click.option(
        "--pilot",
        type=address,
        multiple=True,
        default=("127.0.0.1:8080",),
        help="A control plane's --http-addr; several times for several.",
    )
    @wraps(command)
    def wrapped(*args: Any, pilot: tuple[str, ...], **options: Any) -> Any:
        return command(*args, planes=[PlaneClient(each) for each in pilot], **options)

    return wrapped  # type: ignore[return-value]  # click's decorators keep the function's type
