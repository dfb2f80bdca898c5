"""``mesh-pilot discovery``: the control plane itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import trio

from mesh_pilot import __version__
from mesh_pilot.bootstrap import ControlPlane, control_plane
from mesh_pilot.cli.consul_options import FLAGS, consul_settings
from mesh_pilot.cli.logs import LogFormat, LogLevels, configure, parse_levels
from mesh_pilot.cli.memory import long_lived, set_aside
from mesh_pilot.cli.options import address, duration
from mesh_pilot.rpc.tls import CertificateFiles
from mesh_pilot.settings import Settings, StartError

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


def _option(name: str, *more: str, **attributes: Any) -> Callable[[F], F]:
    """An option ``--some-flag`` that can also be given as the environment variable ``MESH_PILOT_SOME_FLAG``."""
    variable = "MESH_PILOT_" + name.split("/")[0].removeprefix("--").upper().replace("-", "_")
    return click.option(name, *more, envvar=variable, show_envvar=True, **attributes)


def _consul_options(command: F) -> F:
    for name, attributes in reversed(FLAGS):
        command = _option(name, **attributes)(command)
    return command


def levels(text: str) -> LogLevels:
    try:
        return parse_levels(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("discovery", context_settings={"show_default": True})
@_option("--config-dir", "config_dirs", type=PATH, multiple=True, help="Folder of Istio YAML; may be repeated.")
@_option("--mesh-config", type=PATH, help="File with Istio's MeshConfig (mesh.yaml).")
@_option("--networks-config", type=PATH, help="File with Istio's MeshNetworks.")
@_option("--secrets-dir", type=PATH, help="Folder with a folder of PEM files for each credentialName.")
@_option(
    "--mcp-server", "mcp_servers", multiple=True, help="Read configuration there: host:port (MCP), or xds://host:port."
)
@_option("--mcp-tls-ca", type=PATH, help="PEM file of the CA of those servers: connects with TLS.")
@_option("--mcp-tls-cert", type=PATH, help="PEM file of our certificate there, for mutual TLS.")
@_option("--mcp-tls-key", type=PATH, help="PEM file of its key.")
@_option(
    "--mcp-sink-addr",
    type=address,
    help="Let an MCP source, such as a Galley, dial us here.  [default: off]",
)
@_option(
    "--serve-config/--no-serve-config",
    default=None,
    help="Serve configuration over MCP and xDS, at the gRPC ports."
    "  [default: to clients with a certificate, and to those on this machine]",
)
@_consul_options
@_option("--grpc-addr", type=address, default="127.0.0.1:15010", help="xDS in plaintext.")
@_option("--secure-grpc-addr", type=address, default="127.0.0.1:15012", help="xDS over mutual TLS, with --tls-*.")
@_option("--tls-cert", type=PATH, help="PEM file of the server's certificate.")
@_option("--tls-key", type=PATH, help="PEM file of its key.")
@_option("--tls-ca", type=PATH, help="PEM file of the CA that signs the certificates of proxies.")
@_option("--ca-dir", type=PATH, help="Folder of the CA for proxies, made if absent.  [default: a CA for this run]")
@_option("--trust-local/--no-trust-local", default=True, help="Give certificates to plaintext proxies on this machine.")
@_option(
    "--split-virtual-hosts/--whole-route-tables",
    "split_virtual_hosts",
    default=False,
    help="Delta Envoys from 1.40 on get virtual hosts one by one, unless they say otherwise (docs/large-meshes.md).",
)
@_option("--http-addr", type=address, default="127.0.0.1:8080", help="Web page, /ready, /debug, /metrics.")
@_option("--monitoring-addr", type=address, default="127.0.0.1:15014", help="/metrics, /ready and /version.")
@_option("--domain", default="cluster.local", help="DNS domain of the mesh.")
@_option("--namespace", default="istio-system", help="Root namespace, unless the MeshConfig names one.")
@_option("--shutdown-duration", type=duration, default="10s", help="How long draining may take.")
@_option("--debounce-after", type=duration, default="100ms", help="Publish changes once it is quiet for so long,")
@_option("--debounce-max", type=duration, default="10s", help="but after so long at the latest.")
@_option("--sync-timeout", type=duration, help="Serve without sources that are not in by then.  [default: wait]")
@_option("--log-level", type=levels, default="info", help="level, or scope:level,... (see docs/operating.md).")
@_option(
    "--log-format",
    type=click.Choice([f.value for f in LogFormat]),
    default="text",
    help="text (key=value in a pipe) or json.",
)
def command(
    *,
    config_dirs: tuple[Path, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    mcp_tls_cert: Path | None,
    mcp_tls_key: Path | None,
    mcp_tls_ca: Path | None,
    shutdown_duration: float,
    log_level: LogLevels,
    log_format: str,
    **settings: Any,
) -> None:
    """Serve xDS to Envoys from Istio configuration in folders, from Consul and from other servers.

    Runs until SIGTERM or Ctrl-C, then drains. A second signal ends it at once.
    """
    short_names = settings.pop("consul_short_names")
    consul = consul_settings({k: settings.pop(k) for k in list(settings) if k.startswith("consul_")}, os.environ)
    mcp = settings["mcp_servers"] or settings["mcp_sink_addr"]
    if not config_dirs and not consul and not mcp and not settings["mesh_config"]:
        raise click.UsageError(
            "nothing to serve: name a folder of Istio YAML with --config-dir, a Consul with --consul-server-url, "
            "or a server of configuration with --mcp-server"
        )
    tls = None
    if tls_cert or tls_key or tls_ca:
        if not (tls_cert and tls_key and tls_ca):
            raise click.UsageError("serving mutual TLS needs all of --tls-cert, --tls-key and --tls-ca")
        tls = CertificateFiles(certificate=tls_cert, key=tls_key, trusted=tls_ca)
    mcp_tls = None
    if mcp_tls_cert or mcp_tls_key or mcp_tls_ca:
        if not mcp_tls_ca or bool(mcp_tls_cert) != bool(mcp_tls_key):
            raise click.UsageError(
                "TLS to servers of configuration needs --mcp-tls-ca, and for a certificate of ours "
                "both of --mcp-tls-cert and --mcp-tls-key"
            )
        mcp_tls = CertificateFiles(certificate=mcp_tls_cert, key=mcp_tls_key, trusted=mcp_tls_ca)
    configure(log_level, LogFormat(log_format), sys.stderr)
    with start_errors(), long_lived():
        trio.run(
            _serve,
            Settings(
                config_dirs=config_dirs,
                consul=consul,
                consul_short_names=short_names,
                tls=tls,
                mcp_tls=mcp_tls,
                shutdown_seconds=shutdown_duration,
                **settings,
            ),
        )


@contextmanager
def start_errors() -> Iterator[None]:
    """What keeps a command from starting is one line, not a traceback."""
    try:
        yield
    except StartError as error:
        raise click.ClickException(str(error)) from None


async def _serve(settings: Settings) -> None:
    started = time.monotonic()
    async with control_plane(settings) as plane:
        _say_where(plane)
        # Only here: a second signal, while draining, has its usual effect.
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_say_when_ready, plane, started)
                await anext(signals)
                nursery.cancel_scope.cancel()
        click.echo(f"draining, for at most {settings.shutdown_seconds:g} s")


def _say_where(plane: ControlPlane) -> None:
    where = plane.addresses
    lines = [f"mesh-pilot {__version__} serves"]
    lines.append(f"  xDS                {where.grpc}")
    lines.append(f"  xDS, mutual TLS    {where.secure_grpc or 'off (give --tls-cert, --tls-key and --tls-ca)'}")
    lines.append(f"  web, ready, debug  http://{where.http}/")
    lines.append(f"  metrics            http://{where.monitoring}/metrics")
    known = plane.settings
    origins = [
        *map(str, known.config_dirs),
        *(f"Consul at {c.agent.address}" for c in known.consul),
        *known.mcp_servers,
    ]
    if known.mcp_sink_addr:
        origins.append(f"whoever dials {known.mcp_sink_addr}")
    if known.mesh_config and not origins:
        origins.append(f"what {known.mesh_config} names")
    lines.append(f"  from               {', '.join(origins)}")
    click.echo("\n".join(lines))


async def _say_when_ready(plane: ControlPlane, started: float) -> None:
    await plane.wait_ready()
    set_aside()
    state = plane.state.world.statistics()
    click.echo(
        f"ready after {time.monotonic() - started:.1f} s: {sum(state.configs.values())} objects, "
        f"{state.services} services, {state.rejected} refused"
    )
