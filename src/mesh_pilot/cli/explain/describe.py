"""``mesh-pilot describe``: a service, a proxy or an object in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples, output_option
from mesh_pilot.cli.lib.terminal import plain, print_value
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.cli.plane.completion import namespace_option, namespaces
from mesh_pilot.cli.plane.completion import references as references_begun
from mesh_pilot.cli.plane.references import (
    PROXY,
    SERVICE,
    Name,
    is_kind,
    named,
    proxy_named,
    references,
    service_named,
)


@click.command(
    "describe",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot describe service reviews.shop.svc.cluster.local",
        "mesh-pilot describe svc reviews -n shop --from web",
        "mesh-pilot describe proxy web-1.shop",
        "mesh-pilot describe vs/reviews -n shop",
        "mesh-pilot describe AuthorizationPolicy/shop/viewers -o json",
        "mesh-pilot describe reviews",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="KIND/NAME|KIND NAME|NAME", shell_complete=references_begun)
@namespace_option("The namespace. Services, and NAME alone, are looked for in all.")
@click.option(
    "--from",
    "client",
    metavar="NAMESPACE",
    shell_complete=namespaces,
    help="The namespace of the clients that a service's routing is told for.",
)
@output_option
@asks_a_plane
def command(
    *, plane: PlaneClient, words: tuple[str, ...], namespace: str | None, client: str | None, output: str
) -> int:
    """Describe a service, a proxy or an object in plain words: what applies to it, and why.

    KIND is service (svc), proxy, or a kind of objects: VirtualService, virtualservices or vs, in any case. An object is
    KIND/NAME, KIND/NAMESPACE/NAME or KIND NAME.NAMESPACE, too. A service is named by its host, or by the first part of
    it where only one has that; NAME alone is whatever has that name.

    Each line names the object that says so, with file and line. At the end are warnings: what mesh-pilot analyze says
    about these objects, and what only a running control plane knows.

    Exits with 0; with 1 if there is no such thing, or the control plane does not answer; with 2 for a wrong flag.
    """
    chosen = _chosen(plane, words, namespace)
    if client and chosen.kind != SERVICE:
        raise click.UsageError(f"--from applies to services, and {chosen} is not a service")
    if chosen.kind == SERVICE:
        found = plane.get(_path(SERVICE, chosen.name), namespace=chosen.namespace, **{"from": client})
    elif chosen.kind == PROXY:
        found = plane.get(_path(PROXY, chosen.name))
    else:
        found = plane.get(_path("object", *chosen))
    if output != "text":
        print_value(found, output)
    else:
        for line in described_lines(found):
            click.echo(plain(line))
    return 0


def _path(*parts: str) -> str:
    return "/".join(["/describe", *(quote(part, safe="") for part in parts)])


def _chosen(plane: PlaneClient, words: tuple[str, ...], namespace: str | None) -> Name:
    """The name of the one thing that the words name. Raises ClickException if it is not one."""
    if len(words) == 1 and "/" not in words[0] and not is_kind(words[0]):
        return named(plane, words[0], namespace)
    kind, found = references(plane, words, namespace)
    if len(found) != 1:
        raise click.UsageError(f"name one {kind} to describe" if not found else "one at a time can be described")
    (asked,) = found
    if asked.kind == SERVICE:
        return service_named(plane, asked)
    return asked._replace(name=proxy_named(asked)) if asked.kind == PROXY else asked


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
            if warning["fix"]:
                yield f"    {warning['fix']}"


def _where(line: Any) -> str:
    """The object and its place, at the end of a line."""
    if not line["object"]:
        return ""
    what = " ".join(filter(None, (line["object"], line["field"])))
    place = f", {line['place']}" if line["place"] else ""
    return f"  [{what}{place}]"
