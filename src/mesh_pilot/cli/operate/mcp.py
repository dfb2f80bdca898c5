"""``mesh-pilot mcp dump``: what a server of configuration holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh_pilot.cli.lib.options import duration
from mesh_pilot.cli.lib.suggestions import CommandGroup

if TYPE_CHECKING:
    from mesh_pilot.sources.mcp.dump import CollectionDump

PATH = click.Path(path_type=Path)
_WHICH_PORT = "SERVER is a gRPC port, such as 15010 of a mesh-pilot or an istiod, not that of a web page"


@click.group("mcp", cls=CommandGroup)
def command() -> None:
    """Look at servers of configuration: Galleys, istiods, other mesh-pilots."""


@command.command("dump", context_settings={"show_default": True})
@click.argument("server")
@click.option("--collection", "collections", multiple=True, help="Only this collection; may be repeated.")
@click.option("--wait", type=duration, default="5s", help="Time to wait for answers.")
@click.option("--tls-ca", type=PATH, help="PEM file of the CA of the server: connects with TLS.")
@click.option("--tls-cert", type=PATH, help="PEM file of our certificate, for mutual TLS.")
@click.option("--tls-key", type=PATH, help="PEM file of its key.")
def dump(
    *,
    server: str,
    collections: tuple[str, ...],
    wait: float,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Print what SERVER holds, by collection, as YAML.

    SERVER is host:port for MCP, or xds://host:port for MCP over xDS. What was not answered, and what the server does
    not have, stands in comments at the end.
    """
    import trio

    from mesh_pilot.net.rpc import (
        AddressError,
        CertificateFiles,
        ConnectionLost,
        GRPCError,
        RpcError,
        client_tls,
        parse_address,
    )
    from mesh_pilot.sources.mcp.dump import UNREAD_COLLECTIONS, read_once
    from mesh_pilot.sources.mcp.source import McpServer, mcp_dialects, xds_dialects
    from mesh_pilot.xds.mcp.collections import COLLECTIONS, XDS_COLLECTIONS
    from mesh_pilot.xds.mcp.identity import PlaneIdentity

    over_xds = server.startswith("xds://")
    address = server.removeprefix("xds://").removeprefix("mcp://")
    if "://" in address and not address.startswith("unix://"):
        raise click.UsageError(f"{server!r} is a URL; SERVER is host:port, or xds://host:port")
    try:
        parse_address(address)
        tls = None
        if tls_ca or tls_cert:
            tls = client_tls(CertificateFiles(certificate=tls_cert, key=tls_key, trusted=tls_ca))
    except AddressError as error:
        raise click.UsageError(str(error)) from None
    except RpcError as error:
        raise click.ClickException(str(error)) from None
    names = collections or tuple(XDS_COLLECTIONS if over_xds else (*COLLECTIONS, *UNREAD_COLLECTIONS))
    identity = PlaneIdentity()
    dialects = xds_dialects(identity) if over_xds else mcp_dialects(identity, names)
    try:
        found = trio.run(read_once, McpServer(address=address, tls=tls), dialects, names, wait)
    except GRPCError as error:
        raise click.ClickException(f"{server}: {error.status.name}: {error.message}; {_WHICH_PORT}") from None
    except ConnectionLost as error:
        raise click.ClickException(f"{server}: {error}; {_WHICH_PORT}") from None
    except RpcError as error:
        raise click.ClickException(str(error)) from None
    _print(found)


def _print(dump: CollectionDump) -> None:
    from mesh_pilot.istio.reading.yaml_text import yaml_text
    from mesh_pilot.sources.mcp.dump import as_document

    printed: set[str] = set()
    for name, resources in dump.collections.items():
        fresh = []
        for resource in resources:
            one = dict(as_document(name, resource))
            of_any_version = yaml_text([{**one, "apiVersion": ""}])  # a server may have it under several
            if of_any_version not in printed:
                printed.add(of_any_version)
                fresh.append(yaml_text([one]))
        if resources:
            again = len(resources) - len(fresh)
            click.echo(f"# {name}: {len(resources)}" + (f", {again} of them printed above" if again else ""))
        for text in fresh:
            click.echo(f"---\n{text}", nl=False)
    for names, what in (
        (tuple(name for name, resources in dump.collections.items() if not resources), "empty"),
        (dump.unanswered, "not answered in time"),
        (dump.not_offered, "not offered by the server"),
    ):
        if names:
            click.echo(f"# {what}: {', '.join(names)}")
