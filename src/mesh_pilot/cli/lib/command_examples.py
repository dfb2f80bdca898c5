"""Examples of commands that do not bring their own, for their help and the man pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from mesh_pilot.cli.lib.options import examples

EXAMPLES: Mapping[str, Sequence[str]] = {
    "": (
        "mesh-pilot demo",
        "mesh-pilot discovery --config-dir /etc/mesh-pilot/config",
        "mesh-pilot proxy-status",
        "mesh-pilot why reviews.test:9080/api --from web-1.shop",
    ),
    "discovery": (
        "mesh-pilot discovery --config-dir ./config",
        "mesh-pilot discovery --config-dir ./config --mesh-config mesh.yaml --log-level info,xds:debug",
        "mesh-pilot discovery --config-dir ./config --consul-server-url http://127.0.0.1:8500",
    ),
    "proxy": ("mesh-pilot proxy join web.join", "mesh-pilot proxy sidecar --pilot 10.0.0.1:15012"),
    "proxy install": (
        "mesh-pilot proxy install --type sidecar",
        "mesh-pilot proxy install --type router --write /",
    ),
    "proxy join": (
        "mesh-pilot proxy join web.join",
        "mesh-pilot proxy join edge.join --type router",
        "mesh-pilot proxy join web.join --foreground --no-redirect",
    ),
    "proxy leave": ("mesh-pilot proxy leave",),
    "proxy router": ("mesh-pilot proxy router --pilot 10.0.0.1:15012 --label istio=edge",),
    "proxy sidecar": (
        "mesh-pilot proxy sidecar --name web-1 --namespace shop --pilot 10.0.0.1:15012",
        "mesh-pilot proxy sidecar --pilot 127.0.0.1:15010 --plaintext --interception NONE",
    ),
    "proxy wait": ("mesh-pilot proxy wait", "mesh-pilot proxy wait --timeout 10s"),
    "demo": ("mesh-pilot demo", "mesh-pilot demo --keep"),
    "admin": ("mesh-pilot admin status", "mesh-pilot admin log --level xds:debug", "mesh-pilot admin profile cpu"),
    "admin profile": ("mesh-pilot admin profile cpu --seconds 30", "mesh-pilot admin profile memory"),
    "history": ("mesh-pilot history", "mesh-pilot history show 42", "mesh-pilot history diff 41 42"),
    "history diff": ("mesh-pilot history diff 41 42", "mesh-pilot history diff 41 42 --proxy web-1.shop"),
    "history list": ("mesh-pilot history list --since 2h", "mesh-pilot history list --proxy web-1.shop -n 50"),
    "history proxy": ("mesh-pilot history proxy web-1.shop",),
    "history show": ("mesh-pilot history show 42",),
    "ca": ("mesh-pilot ca status", "mesh-pilot ca rotate begin"),
    "ca init": ("mesh-pilot ca init --ca-dir ./ca",),
    "ca revoke": ("mesh-pilot ca revoke --help",),
    "ca root": ("mesh-pilot ca root > root.pem",),
    "ca rotate": ("mesh-pilot ca rotate begin", "mesh-pilot ca rotate switch", "mesh-pilot ca rotate finish"),
    "ca rotate begin": ("mesh-pilot ca rotate begin",),
    "ca rotate finish": ("mesh-pilot ca rotate finish",),
    "ca rotate switch": ("mesh-pilot ca rotate switch",),
    "ca status": ("mesh-pilot ca status --ca-dir ./ca",),
    "mcp": ("mesh-pilot mcp dump 127.0.0.1:9901",),
    "mcp dump": ("mesh-pilot mcp dump 127.0.0.1:9901", "mesh-pilot mcp dump xds://127.0.0.1:15010"),
    "token": ("mesh-pilot token create web --bundle web.join", "mesh-pilot token list"),
    "token create": (
        "mesh-pilot token create web --bundle web.join",
        "mesh-pilot token create web --namespace shop --bundle web.join --pilot pilot.internal:15012 --single-use",
        "mesh-pilot token create web --namespace shop --ttl 24h > token",
    ),
    "token list": ("mesh-pilot token list -o json",),
    "token revoke": ("mesh-pilot token revoke 3f2a91c0",),
    "token rotate-key": ("mesh-pilot token rotate-key", "mesh-pilot token rotate-key --drop-old"),
    "certificate": (
        "mesh-pilot certificate --pilot 10.0.0.1:15012 --tls-ca root.pem --token-file join.token --out-dir certs",
    ),
    "envoy-bootstrap": (
        "mesh-pilot envoy-bootstrap --id web-1 --namespace shop --ip 10.0.0.5 --pilot 127.0.0.1:15010 > envoy.yaml",
    ),
    "iptables": ("mesh-pilot iptables show", "mesh-pilot iptables apply"),
    "iptables apply": ("mesh-pilot iptables apply", "mesh-pilot iptables apply -x 10.0.0.0/8"),
    "iptables clean": ("mesh-pilot iptables clean",),
    "iptables show": ("mesh-pilot iptables show --redirect-dns",),
    "inject": ("mesh-pilot inject deployment.yaml --injection-image registry.example/mesh-pilot:1.0",),
    "version": ("mesh-pilot version",),
}
"""Examples by the names of the command."""


def with_examples(command: click.Command, path: str) -> click.Command:
    """The command, and those in it, with their examples."""
    if not command.epilog and path in EXAMPLES:
        command.epilog = examples(*EXAMPLES[path])
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            with_examples(each, f"{path} {name}")
    return command
