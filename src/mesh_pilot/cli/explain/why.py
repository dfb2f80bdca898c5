"""``mesh-pilot why``: where a request of a proxy goes, and which line of YAML decides each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples, one_line, output_option
from mesh_pilot.cli.lib.terminal import print_value
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.cli.plane.completion import hosts, proxies
from mesh_pilot.cli.plane.envoy_admin import EnvoyAdmin, admin_address
from mesh_pilot.cli.proxy_config.source import DumpSource

if TYPE_CHECKING:
    from mesh_pilot.explain.inspection.why.request import WhyRequest


@click.command(
    "why",
    cls=SectionedCommand,
    context_settings={"show_default": True},
    epilog=examples(
        "mesh-pilot why reviews.shop:9080/v2/list --from web-1.shop",
        "mesh-pilot why reviews.shop:9080/ --from web-1.shop --header x-user=jason --method POST",
        "mesh-pilot why https://shop.example.com/ --from edge.gateways",
        "mesh-pilot why tcp://db.shop:5432 --from web-1.shop",
        "mesh-pilot why reviews.shop:9080/ --from reviews-1.shop --inbound --plaintext",
        "mesh-pilot why reviews.shop:9080/ --admin 127.0.0.1:15000",
        "mesh-pilot why reviews.shop:9080/ --file config_dump.json -o json",
    ),
)
@click.argument("target", metavar="HOST[:PORT][/PATH]", shell_complete=hosts)
@click.option(
    "--from",
    "proxy",
    metavar="PROXY",
    shell_complete=proxies,
    help="The proxy that the request passes: NAME.NAMESPACE.",
)
@click.option("--file", "-f", metavar="DUMP", help="Read a config dump from a file, - for standard input.")
@click.option(
    "--admin", metavar="ADDRESS", callback=admin_address, help="Ask a live Envoy: HOST:PORT of its admin interface."
)
@click.option("--method", default="GET", help="The request's method.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--address", default="", help="The IP address that the client connects to. By default the host's.")
@click.option("--source-ip", "source", default="", help="The IP address that the client connects from.")
@click.option("--sni", default="", help="The server name of the client's TLS. By default the host.")
@click.option("--inbound", is_flag=True, help="A request to the proxy's own application.")
@click.option("--plaintext", is_flag=True, help="The inbound request does not come by the mesh's mTLS.")
@click.option("--principal", default="", help="The identity of the inbound request's client: spiffe://...")
@output_option
@asks_a_plane
def command(
    *,
    plane: PlaneClient,
    target: str,
    proxy: str | None,
    file: str | None,
    admin: str | None,
    output: str,
    **asked: Any,
) -> int:
    """Say where a request goes, and why: listener, filter chain, route, cluster, endpoints.

    The request is HOST[:PORT][/PATH] or a URL with http, https, grpc, tcp or tls. A connected proxy is named by --from;
    each step then names the object that decides it, with file and line, and the proxies of the endpoints are asked,
    too, whether they would let the request in. A live Envoy (--admin) or a file (--file) works without a control plane,
    and without these lines; with --from in addition, the control plane adds those of the steps that are the same there.

    "Nearly" lists earlier routes that the request misses, with the conditions that it lacks.

    Exits with 0; with 1 if the request, or a share of such requests, is refused, answered with an error, or no endpoint
    could take it; with 2 for a request that cannot be read.
    """
    if (file and admin) or not (proxy or file or admin):
        raise click.UsageError("say whose request it is: --from PROXY, --admin ADDRESS or --file DUMP")
    request = _request(target, asked)
    found = _of_plane(plane, target, proxy, asked) if proxy else None
    if file or admin:
        source = DumpSource("", plane, EnvoyAdmin(admin) if admin else None, file or "")
        found = _of_dump(request, source, found)
    if output != "text":
        print_value(found, output)
    else:
        from mesh_pilot.cli.explain.why_text import why_lines

        for line in why_lines(found):
            click.echo(line)
    return int(not _succeeds(found))


def _request(target: str, asked: dict[str, Any]) -> WhyRequest:
    from mesh_pilot.explain.inspection.why.request import WrongRequest, is_address, parse_request

    for name in ("address", "source"):
        if asked[name] and not is_address(asked[name]):
            raise click.UsageError(f"{asked[name]!r} is not an IP address")
    others = {name: value for name, value in asked.items() if name not in ("headers", "plaintext")}
    with one_line(WrongRequest, as_=click.UsageError):
        return parse_request(target, asked["headers"], mtls=not asked["plaintext"], **others)


def _of_plane(plane: PlaneClient, target: str, proxy: str, asked: dict[str, Any]) -> Any:
    given = {name: value or None for name, value in asked.items() if name != "headers"}
    for name in ("inbound", "plaintext"):
        given[name] = "true" if asked[name] else None
    return plane.get("/why", proxy=proxy, to=target, header=list(asked["headers"]) or None, **given)


def _of_dump(request: WhyRequest, source: DumpSource, of_plane: Any) -> Any:
    """The answer of a dump; where the control plane's has the same steps, with the objects that decide them."""
    from mesh_pilot.explain.inspection.why.evidence import DumpEvidence
    from mesh_pilot.explain.inspection.why.story import explain
    from mesh_pilot.model.json import as_json

    dump = source.dump(health=True)
    try:
        found: Any = as_json(explain(DumpEvidence(dump), request))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # A file may have any JSON where a message should be.
        where = type(error).__name__
        raise click.ClickException(f"the dump has something that no Envoy has: {where}: {error}") from None
    for part in ("steps", "nearly") if of_plane is not None else ():
        decided = {(step["step"], step["name"], step["text"]): step["decided_by"] for step in of_plane[part]}
        for step in found[part]:
            step["decided_by"] = decided.get((step["step"], step["name"], step["text"]), [])
    return found


def _succeeds(found: Any) -> bool:
    """True if no share of such requests is refused, answered with an error, or without an endpoint."""
    return not any(each["fails"] for each in found["outcomes"])
