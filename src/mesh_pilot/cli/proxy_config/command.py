"""The commands of ``mesh-pilot proxy-config``."""

from __future__ import annotations

import click

from mesh_pilot.cli.lib.options import examples
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import print_value
from mesh_pilot.cli.proxy_config.log import command as log_command
from mesh_pilot.cli.proxy_config.output import output_option, print_listing
from mesh_pilot.cli.proxy_config.source import DumpSource, reads_a_dump
from mesh_pilot.cli.proxy_config.traffic import with_traffic

ALIASES = {
    "clusters": "cluster", "c": "cluster",
    "listeners": "listener", "l": "listener",
    "routes": "route", "r": "route",
    "endpoints": "endpoint", "ep": "endpoint",
    "secrets": "secret", "s": "secret",
    "b": "bootstrap", "a": "all", "ec": "ecds", "o": "log",
}  # fmt: skip
"""Istioctl's other names of the commands."""


class AliasedGroup(CommandGroup):
    """Knows istioctl's other names of its commands."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        _, command, rest = super().resolve_command(ctx, args)
        return command.name if command is not None else None, command, rest


@click.group(
    "proxy-config",
    cls=AliasedGroup,
    epilog=examples(
        "mesh-pilot proxy-config cluster web-1.shop --fqdn reviews",
        "mesh-pilot pc route web-1.shop --name 9080 -o json",
        "mesh-pilot pc endpoint --admin 127.0.0.1:15000 --status unhealthy",
        "curl -s localhost:15000/config_dump?include_eds | mesh-pilot pc listener --file -",
    ),
)
def command() -> None:
    """Show the configuration of a proxy, as istioctl does.

    PROXY is a connected proxy: web-1.shop, or web-1 if there is only one of that name. The control plane then tells
    what it sent, and from which line of YAML. With --admin a live Envoy tells what it has, with --file a dump does;
    with PROXY in addition, the control plane adds the lines.
    """


@command.command(
    "cluster",
    epilog=examples(
        "mesh-pilot proxy-config cluster web-1.shop",
        "mesh-pilot pc clusters web-1.shop --port 9080 --direction outbound --subset v1",
    ),
)
@reads_a_dump
@click.option("--fqdn", default="", help="Only clusters with this in their names.")
@click.option("--port", type=int, default=0, help="Only clusters of this port.")
@click.option("--subset", default="", help="Only clusters with this in the names of their subsets.")
@click.option("--direction", default="", help="Only clusters of this direction: inbound or outbound.")
@output_option()
def cluster(*, source: DumpSource, fqdn: str, port: int, subset: str, direction: str, output: str) -> int:
    """List the clusters of a proxy.

    A SECOND and SUCCESS are what the proxy counted of the cluster in the last minute, where it reports traffic.

    Exits with 0, 1 if there is nothing to list or the dump cannot be read, 2 for a wrong flag.
    """
    from mesh_pilot.explain.inspection.listings.clusters import ClusterFilter, list_clusters

    dump = source.dump()
    found = list_clusters(dump, ClusterFilter(fqdn, port, subset, direction))
    return print_listing(dump, with_traffic(source, found), output, "no such cluster")


@command.command(
    "listener",
    epilog=examples(
        "mesh-pilot proxy-config listener web-1.shop",
        "mesh-pilot pc listeners web-1.shop --port 9080 -o json",
    ),
)
@reads_a_dump
@click.option("--address", default="", help="Only listeners at this address.")
@click.option("--port", type=int, default=0, help="Only listeners on this port.")
@click.option("--type", "kind", default="", help="Only listeners of this type: HTTP, TCP, HTTP+TCP or UNKNOWN.")
@click.option("--verbose/--no-verbose", default=True, help="A line for each filter chain, or for each listener.")
@output_option()
def listener(*, source: DumpSource, address: str, port: int, kind: str, verbose: bool, output: str) -> int:
    """List the listeners of a proxy, with what each of their filter chains matches and leads to.

    Exits with 0, 1 if there is nothing to list or the dump cannot be read, 2 for a wrong flag.
    """
    from mesh_pilot.explain.inspection.listings.listeners import ListenerFilter, list_listeners

    dump = source.dump()
    found = list_listeners(dump, ListenerFilter(address, port, kind), verbose=verbose)
    return print_listing(dump, found, output, "no such listener")


@command.command(
    "route",
    epilog=examples("mesh-pilot proxy-config route web-1.shop", "mesh-pilot pc routes web-1.shop --name 9080 -o json"),
)
@reads_a_dump
@click.option("--name", default="", help="Only the route table of this name.")
@click.option("--verbose/--no-verbose", default=True, help="A line for each route, or for each table.")
@output_option()
def route(*, source: DumpSource, name: str, verbose: bool, output: str) -> int:
    """List the routes of a proxy, with the VirtualService that each comes from.

    Exits with 0, 1 if there is nothing to list or the dump cannot be read, 2 for a wrong flag.
    """
    from mesh_pilot.explain.inspection.listings.routes import list_routes

    dump = source.dump()
    return print_listing(dump, list_routes(dump, name, verbose=verbose), output, "no such route")


@command.command(
    "endpoint",
    epilog=examples(
        "mesh-pilot proxy-config endpoint web-1.shop --cluster 'outbound|9080||reviews.test'",
        "mesh-pilot pc endpoints --admin 127.0.0.1:15000 --status unhealthy",
    ),
)
@reads_a_dump
@click.option("--address", default="", help="Only endpoints at this address.")
@click.option("--port", type=int, default=0, help="Only endpoints on this port.")
@click.option("--cluster", default="", help="Only endpoints of this cluster.")
@click.option("--status", default="", help="Only endpoints of this health: healthy, unhealthy, draining, degraded, ...")
@output_option()
def endpoint(*, source: DumpSource, address: str, port: int, cluster: str, status: str, output: str) -> int:
    """List the endpoints of a proxy's clusters.

    STATUS is the health that the control plane told; a live Envoy adds what its own health checks found. OUTLIER CHECK
    is known to a live Envoy alone. A SECOND and SUCCESS are what the proxy counted of the whole cluster in the last
    minute, where it reports traffic.

    Exits with 0, 1 if there is nothing to list or the dump cannot be read, 2 for a wrong flag.
    """
    from mesh_pilot.explain.inspection.listings.endpoints import EndpointFilter, list_endpoints

    dump = source.dump(health=True)
    found = list_endpoints(dump, EndpointFilter(address, port, cluster, status))
    return print_listing(dump, with_traffic(source, found), output, "no such endpoint")


@command.command(
    "secret",
    epilog=examples("mesh-pilot proxy-config secret web-1.shop", "mesh-pilot pc secrets --admin 127.0.0.1:15000"),
)
@reads_a_dump
@output_option()
def secret(*, source: DumpSource, output: str) -> int:
    """List the certificates of a proxy, and how long they are valid. Keys are never shown.

    Exits with 0, 1 if there is nothing to list or the dump cannot be read, 2 for a wrong flag.
    """
    from datetime import UTC, datetime

    from mesh_pilot.explain.inspection.listings.secrets import list_secrets

    dump = source.dump()
    return print_listing(dump, list_secrets(dump, datetime.now(UTC)), output, "no secret")


@command.command("ecds", epilog=examples("mesh-pilot proxy-config ecds web-1.shop", "mesh-pilot pc ecds web-1 -o yaml"))
@reads_a_dump
@output_option()
def ecds(*, source: DumpSource, output: str) -> int:
    """List the extension configurations that a proxy got over ECDS.

    Exits with 0, 1 if there is nothing to list or the dump cannot be read, 2 for a wrong flag.
    """
    from mesh_pilot.explain.inspection.listings.extensions import list_extensions

    dump = source.dump()
    return print_listing(dump, list_extensions(dump), output, "no extension configuration")


@command.command(
    "bootstrap",
    epilog=examples(
        "mesh-pilot proxy-config bootstrap --admin 127.0.0.1:15000", "mesh-pilot pc b --file dump.json -o yaml"
    ),
)
@reads_a_dump
@output_option("json")
def bootstrap(*, source: DumpSource, output: str) -> int:
    """Show the bootstrap of a proxy. Only Envoy has it: read it with --admin or --file.

    Exits with 0, 1 if there is none in the dump or the dump cannot be read, 2 for a wrong flag.
    """
    from mesh_pilot.model.redaction import redacted

    if source.is_plane:
        raise click.UsageError("the control plane has no proxy's bootstrap; read it with --admin or --file")
    found = redacted(source.dump().bootstrap)
    if not found:
        raise click.ClickException("the dump has no bootstrap")
    print_value(found, "json" if output == "short" else output)
    return 0


@command.command(
    "all",
    epilog=examples("mesh-pilot proxy-config all web-1.shop", "mesh-pilot pc all web-1.shop -o json > web-1.json"),
)
@reads_a_dump
@output_option()
def everything(*, source: DumpSource, output: str) -> int:
    """Show everything: all listings one below the other, or the whole dump without keys.

    What -o json writes can be read again with --file.

    Exits with 0, 1 if there is nothing to list or the dump cannot be read, 2 for a wrong flag.
    """
    if output != "short":
        from mesh_pilot.model.redaction import redacted

        print_value(redacted(source.document()), output)
        return 0
    from datetime import UTC, datetime

    from mesh_pilot.explain.inspection.listings import clusters, endpoints, extensions, listeners, routes, secrets

    dump = source.dump(health=True)
    found = (
        clusters.list_clusters(dump, clusters.ClusterFilter()),
        listeners.list_listeners(dump, listeners.ListenerFilter()),
        routes.list_routes(dump),
        endpoints.list_endpoints(dump, endpoints.EndpointFilter()),
        secrets.list_secrets(dump, datetime.now(UTC)),
        extensions.list_extensions(dump),
    )
    filled = [each for each in found if each.rows]
    for number, each in enumerate(filled):
        if number:
            click.echo()
        print_listing(dump, each, output, "")
    if not filled:
        click.echo("the dump is empty")
    return int(not filled)


command.add_command(log_command)
