"""``mesh-pilot proxy install``: units of systemd for the proxy and its redirection, and a service for Consul."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

UNITS = "etc/systemd/system"
PROXY, IPTABLES = "mesh-pilot-proxy", "mesh-pilot-iptables"
USER = "istio-proxy"
"""The user of proxy and Envoy alone."""
_ADVICE = (
    "Install mesh-pilot and Envoy where every user can read them, such as /opt/mesh-pilot (docs/installing.md), and run"
    " that command, or name it with --program"
)
DRAIN_SECONDS = 90
"""The time that systemd waits for the drain: Consul's, then Envoy's, of 5 s unless a ProxyConfig says more."""

_PROXY = """\
# The proxy of this machine: Envoy, and the agent next to it (systemd 247 or newer). Made by: mesh-pilot proxy install

[Unit]
Description=mesh-pilot proxy, the Envoy of this machine with its agent
Wants=network-online.target
After=network-online.target consul.service
# It retries forever.
StartLimitIntervalSec=0

[Service]
# Up when Envoy is ready. That may wait for a control plane where none has answered before: no time is too long.
Type=notify
TimeoutStartSec=infinity
User={user}
Group={user}
# Settings: /etc/mesh-pilot/proxy.yaml, and here as variables: --token-file is MESH_PILOT_PROXY_TOKEN_FILE.
EnvironmentFile=-/etc/mesh-pilot/proxy.env
ExecStart={program} proxy {kind}
# The version that is installed now takes over Envoy, its ports and its sockets.
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=1
# SIGTERM drains; what is left after that is killed with all of its children.
KillMode=mixed
TimeoutStopSec={drain}

# Keys, certificates and the last answers of the control plane; sockets and Envoy's files.
StateDirectory={name}
StateDirectoryMode=0700
RuntimeDirectory={name}
RuntimeDirectoryMode=0700
UMask=0077

LimitNOFILE=1048576
LimitCORE=0
CapabilityBoundingSet={capabilities}
AmbientCapabilities={capabilities}
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
# The agent duplicates listening sockets of its Envoy: so no connection is lost when another Envoy takes over.
SystemCallFilter=@system-service pidfd_getfd

[Install]
WantedBy=multi-user.target
"""

_IPTABLES = """\
# The redirection of this machine's traffic to its proxy. Made by: mesh-pilot proxy install

[Unit]
Description=Redirection of traffic to the mesh-pilot proxy
# The rules are there before the proxy, stay while it is away and go after it: what passes Envoy by passes policies by.
# Units of applications: Requires=mesh-pilot-iptables.service, and After= the same.
Wants={name}.service network-online.target
# Consul is up once it has joined others, whose names it may look up: no DNS is redirected before.
After=network-online.target consul.service
Before={name}.service
# It retries forever.
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
EnvironmentFile=-/etc/mesh-pilot/iptables.env
ExecStart={program} iptables apply {flags}
# Other settings replace the rules in one step; stopping removes them.
ExecReload={program} iptables apply {flags}
ExecStop={program} iptables clean
Restart=on-failure
RestartSec=5

CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=strict
ReadWritePaths=/run

[Install]
WantedBy=multi-user.target
"""


def files(
    *, kind: str, program: str, user: str, interception: str, dns: bool, service: Mapping[str, Any] | None
) -> dict[str, str]:
    """The text of each file, by its path without the leading slash."""
    found = {
        f"{UNITS}/{PROXY}.service": _PROXY.format(
            name=PROXY,
            kind=kind,
            program=program,
            user=user,
            drain=DRAIN_SECONDS,
            capabilities=" ".join(capabilities(kind, interception)),
        ),
        f"etc/sysusers.d/{PROXY}.conf": f'u {user} - "mesh-pilot proxy"\n',
    }
    if kind == "sidecar" and interception != "NONE":
        flags = " ".join(redirection(user=user, interception=interception, dns=dns))
        found[f"{UNITS}/{IPTABLES}.service"] = _IPTABLES.format(name=PROXY, program=program, flags=flags)
    if service is not None:
        import json

        found[f"etc/consul.d/{service['name']}.json"] = json.dumps({"service": service}, indent=2) + "\n"
    return found


def capabilities(kind: str, interception: str) -> list[str]:
    """The rights of root that a proxy has though it runs as another user."""
    return [
        *(["CAP_NET_BIND_SERVICE"] if kind == "router" else []),
        *(["CAP_NET_ADMIN"] if interception == "TPROXY" else []),
    ]


def redirection(*, user: str, interception: str, dns: bool) -> list[str]:
    """The flags of ``mesh-pilot iptables apply``."""
    mode = ["--istio-inbound-interception-mode", interception]
    return ["--proxy-uid", user, *mode, *(["--redirect-dns"] if dns else [])]


@click.command("install", context_settings={"show_default": True})
@click.option("--type", "kind", type=click.Choice(["sidecar", "router"]), default="sidecar", help="What the unit runs.")
@click.option("--program", help="Path of mesh-pilot on that machine.  [default: this one]")
@click.option("--user", default=USER, help="User that runs proxy and Envoy, and nothing else.")
@click.option(
    "--interception",
    type=click.Choice(["REDIRECT", "TPROXY", "NONE"]),
    default="REDIRECT",
    help="A unit of the redirection; with NONE there is none.",
)
@click.option("--dns/--no-dns", default=False, help="Redirect DNS, too: the proxy has --dns.")
@click.option("--service", help="Name of the application in Consul: a definition of it.")
@click.option("--port", type=click.IntRange(1, 65535), help="Where the application listens.")
@click.option("--protocol", default="http", help="What it speaks there.")
@click.option("--namespace", default="default", help="Namespace in the mesh.")
@click.option("--service-account", help="Service account.  [default: the service's name]")
@click.option("--write", "root", type=click.Path(path_type=Path), help="Write the files below this folder; / installs.")
@click.option("--force", is_flag=True, help="With --write, replace files that differ.")
def command(
    *,
    kind: str,
    program: str | None,
    user: str,
    interception: str,
    dns: bool,
    service: str | None,
    port: int | None,
    protocol: str,
    namespace: str,
    service_account: str | None,
    root: Path | None,
    force: bool,
) -> None:
    """Print units of systemd for the proxy and its redirection, and with --service a definition for Consul.

    The settings of the proxy stay in /etc/mesh-pilot/proxy.yaml.
    """
    if (service is None) != (port is None):
        raise click.UsageError("a definition for Consul needs both of --service and --port")
    definition = None
    if service is not None:
        meta = {"protocol": protocol, "namespace": namespace, "service_account": service_account or service}
        definition = {"name": service, "port": port, "meta": {**meta, "tls_mode": "istio"}}
    program = program or this_program()
    redirects = kind == "sidecar" and interception != "NONE"
    check_startable(program, user, redirects=redirects, is_here=root == Path("/"))
    found = files(
        kind=kind,
        program=program,
        user=user,
        interception=interception,
        dns=dns,
        service=definition,
    )
    if root is None:
        click.echo("\n".join(f"# /{path}\n{text}" for path, text in found.items()), nl=False)
        return
    _write(root, found, force=force)
    if root == Path("/"):
        from mesh_pilot.cli.proxy.unit_paths import why_settings_unusable

        for why in why_settings_unusable(user):
            click.echo(f"to do before the start: {why}", err=True)
        click.echo(f"now: systemd-sysusers && systemctl daemon-reload && systemctl enable --now {_units(found)}")


def check_startable(program: str, user: str, *, redirects: bool, is_here: bool) -> None:
    """Refuse units that could not start on this machine; of another machine only what holds on each is known."""
    from mesh_pilot.cli.proxy.unit_paths import hidden_by, why_not_startable

    if not program.startswith("/"):
        raise click.UsageError(f"--program {program}: systemd needs an absolute path")
    if is_here:
        reasons = why_not_startable(program, user, redirects=redirects)
        if reasons:
            raise click.ClickException(
                f"the units could not start: {'; '.join(reasons)}. {_ADVICE}; nothing was written"
            )
    elif why := hidden_by(program):
        click.echo(f"mesh-pilot: the units will not start with {program}: {why}. {_ADVICE}", err=True)


def _write(root: Path, found: Mapping[str, str], *, force: bool) -> None:
    """Write all files, or none where one of them would be lost."""
    for path, text in found.items():
        if not force and (root / path).exists() and (root / path).read_text(encoding="utf-8") != text:
            raise click.ClickException(f"{root / path} differs; --force replaces it; nothing was written")
    for path, text in found.items():
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{root / path}: {error.strerror}") from None
        click.echo(f"wrote {root / path}")


def _units(found: Mapping[str, str]) -> str:
    return " ".join(Path(path).name for path in found if path.startswith(UNITS))


def this_program() -> str:
    """The installed command; where it is run from a checkout, the place of the documentation."""
    import shutil

    return shutil.which("mesh-pilot") or "/opt/mesh-pilot/bin/mesh-pilot"
