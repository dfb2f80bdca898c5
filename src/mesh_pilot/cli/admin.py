"""``mesh-pilot admin``: orders to the control plane on this machine, over its Unix socket."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click

from mesh_pilot.cli.state_flags import default_folder

F = TypeVar("F", bound=Callable[..., Any])

NAMED = 20
"""Held objects of a source that are named, except in JSON."""

_PATH = click.Path(path_type=Path)


def _where(command: F) -> F:
    for name, text in (
        ("--admin-socket", "The control plane's --admin-socket.  [default: admin.sock in the state folder]"),
        ("--state-dir", "The control plane's --state-dir.  [default: the system's, such as /var/lib/mesh-pilot]"),
    ):
        variable = "MESH_PILOT_" + name.removeprefix("--").upper().replace("-", "_")
        command = click.option(name, type=_PATH, envvar=variable, help=text)(command)
    return command


@click.group("admin", context_settings={"show_default": True})
def command() -> None:
    """Give orders to the control plane on this machine.

    They go over a Unix socket in its state folder. Only the user that it runs as, and root, may use it.
    """


@command.command("status")
@_where
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def status(*, state_dir: Path | None, admin_socket: Path | None, output: str) -> int:
    """Show the sources that are stale, or of which something is held.

    stale: the picture of an earlier run is in force, because the source has not given a full one in this run.
    held: objects that the source lost at once stay in force.

    Exits with 0, or with 1 if there are any, or if the control plane does not answer.
    """
    sources = _ask("GET", "/status", state_dir, admin_socket)["sources"]
    if output == "json":
        click.echo(json.dumps(sources, indent=2, ensure_ascii=False))
    elif not sources:
        click.echo("every source stands by what is in force")
    else:
        for entry in sources:
            click.echo("\n".join(_lines(entry)))
    return int(bool(sources))


def _lines(entry: Mapping[str, Any]) -> list[str]:
    ago = timedelta(seconds=entry["seconds"])
    lines = [f"{entry['source']}: {entry['state']} since {entry['since']} ({ago} ago): {entry['reason']}"]
    if entry["state"] == "held":
        shown = [str(name) for name in entry["names"][:NAMED]]
        lines += [f"  {entry['objects']} objects:", *(f"    {name}" for name in shown)]
        lines += [f"    and {entry['objects'] - len(shown)} more: see -o json"] if entry["objects"] > len(shown) else []
    lines += [f"  {entry['effect']}"]
    if entry["state"] == "held":
        lines += [f"  to let them go: {entry['to_let_them_go']}"]
    return lines


@command.command("accept")
@click.argument("source")
@_where
def accept(*, source: str, state_dir: Path | None, admin_socket: Path | None) -> None:
    """Let go what is held of SOURCE: it is gone for good.

    The names of sources are in mesh-pilot admin status, and on the web page.
    """
    answer = _ask("POST", f"/accept/{quote(source, safe='')}", state_dir, admin_socket)
    gone = "1 object goes" if answer["gone"] == 1 else f"{answer['gone']} objects go"
    click.echo(f"{answer['source']}: {gone}: {answer['first']}")


def _ask(method: str, path: str, state_dir: Path | None, admin_socket: Path | None) -> Any:
    """The answer to an order. Raises ClickException where there is none, with the reason."""
    import httpx

    socket = _socket(state_dir, admin_socket)
    hint = "is mesh-pilot discovery running on this machine, with this --state-dir or --admin-socket?"
    try:
        socket.lstat()
        with httpx.Client(transport=httpx.HTTPTransport(uds=os.fspath(socket)), timeout=60) as client:
            reply = client.request(method, f"http://admin{path}")
        answer = reply.json()
    except FileNotFoundError:
        raise click.ClickException(f"there is no {socket}: {hint}") from None
    except PermissionError as error:
        raise _refused(socket, error) from None
    except httpx.ConnectError as error:
        if isinstance(_errno(error), PermissionError):
            raise _refused(socket, error) from None
        raise click.ClickException(f"nobody answers at {socket}: {error}; {hint}") from None
    except (httpx.HTTPError, ValueError) as error:
        raise click.ClickException(f"{socket} gives no proper answer: {error or type(error).__name__}") from None
    if reply.status_code != 200:
        raise click.ClickException(str(answer.get("error", f"{socket} answers {reply.status_code}")))
    return answer


def _refused(socket: Path, error: Exception) -> click.ClickException:
    return click.ClickException(
        f"{socket}: permission denied; only the user that mesh-pilot discovery runs as, and root, may give orders"
    )


def _errno(error: BaseException | None) -> BaseException | None:
    """The system's error behind others."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def _socket(state_dir: Path | None, admin_socket: Path | None) -> Path:
    if admin_socket is not None:
        return admin_socket
    from mesh_pilot.state.settings import ADMIN_SOCKET

    return (state_dir or default_folder(os.environ)) / ADMIN_SOCKET
