"""``mesh-pilot describe``: a service, a proxy or an object in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import quote

import click

from mesh_pilot.cli.lib.options import examples
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import plain, print_value
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane

F = TypeVar("F", bound=Callable[..., Any])


def _output(command: F) -> F:
    choice = click.Choice(["text", "json", "yaml"])
    return click.option("--output", "-o", type=choice, default="text", show_default=True, help="How to print it.")(
        command
    )


@click.group(
    "describe",
    cls=CommandGroup,
    epilog=examples(
        "mesh-pilot describe service reviews.shop.svc.cluster.local",
        "mesh-pilot describe proxy web-1.shop",
        "mesh-pilot describe object VirtualService/shop/reviews",
    ),
)
def command() -> None:
    """Describe a service, a proxy or an object in plain words: what applies to it, and why.

    Each line names the object that says so, with file and line. At the end are warnings: what mesh-pilot analyze says
    about these objects, and what only a running control plane knows.

    Exits with 0; with 1 if there is no such thing, or the control plane does not answer; with 2 for a wrong flag.
    """


@command.command(
    "service",
    epilog=examples(
        "mesh-pilot describe service reviews.shop.svc.cluster.local",
        "mesh-pilot describe service web.service.consul --from shop -o json",
    ),
)
@click.argument("host")
@click.option("--namespace", "-n", help="The service's namespace, where several have the host.")
@click.option("--from", "client", metavar="NAMESPACE", help="The namespace of the clients that routing is told for.")
@_output
@asks_a_plane
def service(*, plane: PlaneClient, host: str, namespace: str | None, client: str | None, output: str) -> int:
    """Describe a service: ports, endpoints, routing, mTLS, and who may reach it."""
    query = {"namespace": namespace, "from": client}
    return _print(plane.get(f"/describe/service/{quote(host, safe='')}", **query), output)


@command.command("proxy", epilog=examples("mesh-pilot describe proxy web-1.shop"))
@click.argument("name")
@_output
@asks_a_plane
def proxy(*, plane: PlaneClient, name: str, output: str) -> int:
    """Describe a connected proxy: what it serves and sees, and which objects apply to it."""
    return _print(plane.get(f"/describe/proxy/{quote(name, safe='')}"), output)


@command.command(
    "object",
    epilog=examples(
        "mesh-pilot describe object VirtualService/shop/reviews",
        "mesh-pilot describe object authorizationpolicy/shop/viewers -o json",
    ),
)
@click.argument("name", metavar="KIND/NAMESPACE/NAME")
@_output
@asks_a_plane
def object_(*, plane: PlaneClient, name: str, output: str) -> int:
    """Describe an object: whom it applies to, what it says and produces."""
    parts = name.split("/")
    if len(parts) != 3 or not all(parts):
        raise click.UsageError(f"{name!r} is not KIND/NAMESPACE/NAME")
    path = "/".join(quote(part, safe="") for part in parts)
    return _print(plane.get(f"/describe/object/{path}"), output)


def _print(found: Any, output: str) -> int:
    if output != "text":
        print_value(found, output)
    else:
        for line in described_lines(found):
            click.echo(plain(line))
    return 0


def described_lines(found: Any) -> Iterator[str]:
    """A description of the API in lines."""
    yield f"{found['kind'].capitalize()} {found['name']}: {found['summary']}"
    for section in found["sections"]:
        yield ""
        yield section["title"]
        for line in section["lines"]:
            yield f"  {line['text']}{_where(line)}"
    if found["warnings"]:
        yield ""
        yield "Warnings"
        for warning in found["warnings"]:
            code = f"{warning['code']} " if warning["code"] else ""
            yield f"  {code}{warning['text']}{_where(warning)}"
            if warning["mend"]:
                yield f"    {warning['mend']}"


def _where(line: Any) -> str:
    """The object and its place, at the end of a line."""
    if not line["object"]:
        return ""
    what = " ".join(filter(None, (line["object"], line["field"])))
    place = f", {line['place']}" if line["place"] else ""
    return f"  [{what}{place}]"
