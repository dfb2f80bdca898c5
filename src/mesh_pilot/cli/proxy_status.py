"""``mesh-pilot proxy-status``: who is connected to a running control plane, and what each proxy took or refused."""

from __future__ import annotations

import click
import httpx
from rich.console import Console
from rich.table import Table

from mesh_pilot.cli.options import address

TYPES = ("CDS", "EDS", "LDS", "RDS", "VHDS", "SDS", "ECDS")


@click.command("proxy-status", context_settings={"show_default": True})
@click.option("--pilot", type=address, default="127.0.0.1:8080", help="The control plane's --http-addr.")
def command(*, pilot: str) -> int:
    """List connected proxies and whether they took what they were sent.

    SYNCED: accepted. STALE: sent, and not answered yet. NACK: refused; the proxy keeps what it had. NOT SENT: it asked,
    and there is nothing. Exits with 1 when a proxy refuses something.
    """
    url = f"http://{pilot}/debug/syncz"
    try:
        reply = httpx.get(url, trust_env=False, timeout=10)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        raise click.ClickException(f"cannot ask {url}: {error}") from None
    entries = sorted(reply.json(), key=lambda entry: str(entry["proxy"]))
    table = Table(box=None, pad_edge=False)
    for column in ("NAME", "TYPE", "ENVOY", "XDS", *TYPES):
        table.add_column(column, no_wrap=True)
    for entry in entries:
        states = [entry["status"].get(name, "") for name in TYPES]
        table.add_row(entry["proxy"], entry["proxy_type"], entry["proxy_version"], entry["xds"], *states)
    if entries:
        Console(highlight=False, soft_wrap=True).print(table)
    else:
        click.echo("no proxy is connected")
    return int(any("NACK" in entry["status"].values() for entry in entries))
