"""The settings of ``mesh-pilot proxy``: each is a flag, a variable ``MESH_PILOT_PROXY_<FLAG>``, and a key of the file.

Only text is here: what reads it is imported when the command runs, so that ``--help`` is quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mesh_pilot.cli.lib.options import FlagType, ListOption, address, duration, ip_address, pilot
from mesh_pilot.cli.lib.options import label as pair_of

PREFIX = "MESH_PILOT_PROXY_"
"""The start of the names of our variables."""

DEFAULT_FILE = Path("/etc/mesh-pilot/proxy.yaml")
"""The settings file that is read where there is one and no other is named."""

ENVOY_LEVELS = ("trace", "debug", "info", "warning", "warn", "error", "critical", "off")
"""The levels of Envoy's log, as its ``--log-level`` takes them."""

_PATH = click.Path(path_type=Path)
_PORT = click.IntRange(0, 65535)


@FlagType
def name_server(text: str) -> str:
    """An IP address, perhaps with a port, checked and as it was written."""
    host = text.rpartition(":")[0] if text.count(":") == 1 or (text.startswith("[") and "]:" in text) else text
    ip_address.convert(host.removeprefix("[").removesuffix("]"), None, None)
    return text


@FlagType
def levels(text: str) -> str:
    """``level`` or ``scope:level,...``, checked and as it was written."""
    from mesh_pilot.cli.lib.logs import parse_levels

    try:
        parse_levels(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@FlagType
def label(value: Any) -> object:
    """``KEY=VALUE`` as a pair; pairs of the file are as they are."""
    return value if isinstance(value, tuple) else pair_of(value)


@FlagType
def yaml(value: Any) -> object:
    """An object as YAML; one of the file is as it is."""
    from mesh_pilot.cli.proxy.values import read_object

    return read_object(value)


@FlagType
def objects(value: Any) -> object:
    """An object, or a list of them, as YAML."""
    from mesh_pilot.cli.proxy.values import read_objects

    return read_objects(value)


@FlagType
def service(value: Any) -> object:
    """The id of a service, or in the file its definition."""
    return value


@FlagType
def principal(text: str) -> str:
    """A principal as a SPIFFE id."""
    from mesh_pilot.agent.status.exports import read_principal

    return read_principal(text)


@FlagType
def receiver(text: str) -> str:
    """The URL of an OTLP receiver."""
    from mesh_pilot.agent.status.exports import read_endpoint

    return read_endpoint(text)


@FlagType
def interval(value: Any) -> float:
    """The time between two pushes, in seconds."""
    from mesh_pilot.agent.status.exports import read_interval

    return read_interval(duration.convert(value, None, None))


def _many(help_text: str, **more: Any) -> Mapping[str, Any]:
    return {"multiple": True, "help": help_text, **more}


FLAGS: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "Who it is": (
        ("--name", {"help": "Name of this workload, such as web-1.  [default: the machine's]"}),
        ("--namespace", {"default": "default", "help": "Namespace of this workload."}),
        (
            "--service-account",
            {
                "default": "default",
                "help": "Service account; if not given, it and the namespace are those of the token or certificate.",
            },
        ),
        ("--ip", {"type": ip_address, "help": "Address under which services list it.  [default: the default route's]"}),
        (
            "--dual-stack/--single-stack",
            {"default": None, "help": "Listen over IPv4 and IPv6.  [default: dual-stack for a router]"},
        ),
        ("--label", _many("A label, KEY=VALUE, for selectors.", type=label)),
        ("--annotation", _many("An annotation, KEY=VALUE, as of a pod.", type=label)),
        ("--metadata", _many("More node metadata, KEY=VALUE.", type=label)),
        ("--locality", {"default": "", "help": "REGION/ZONE/SUBZONE; the nearest control plane is preferred."}),
        ("--domain", {"default": "cluster.local", "help": "DNS domain of the mesh."}),
        (
            "--interception",
            {
                "type": click.Choice(["REDIRECT", "TPROXY", "NONE"]),
                "default": "REDIRECT",
                "help": "How traffic reaches a sidecar: by iptables, or NONE: applications connect.",
            },
        ),
    ),
    "Control planes": (
        ("--pilot", _many("ADDRESS or ADDRESS@REGION/ZONE of a control plane's secure port.", type=pilot)),
        ("--tls-ca", {"type": _PATH, "help": "PEM file of the roots that they are known by."}),
        ("--tls-server-name", {"help": "DNS name in their certificates.  [default: the host of --pilot]"}),
        ("--plaintext", {"is_flag": True, "help": "Without TLS: --pilot is their plaintext port."}),
        ("--delta/--sotw", {"default": True, "help": "Incremental xDS, or State of the World."}),
        ("--traffic/--no-traffic", {"default": True, "help": "Tell them what becomes of requests."}),
    ),
    "Certificate": (
        ("--token-file", {"type": _PATH, "help": "File with a join token or JSON Web Token."}),
        ("--consul-login-token-file", {"type": _PATH, "help": "File with the token of a Consul login."}),
        ("--consul-login-service", {"default": "", "help": "Which of its services we are.  [default: the account]"}),
        ("--cert-chain", {"type": _PATH, "help": "PEM file of a certificate to use as it is, with --key."}),
        ("--key", {"type": _PATH, "help": "PEM file of the key of --cert-chain."}),
        (
            "--root-cert",
            {"type": _PATH, "help": "PEM file of the mesh's roots. All three are read again when they change."},
        ),
        ("--sds-socket", {"type": _PATH, "help": "Unix socket of another SDS server, such as SPIRE's agent."}),
        ("--cert-ttl", {"type": duration, "help": "Lifetime to ask for.  [default: the control plane's]"}),
        ("--key-type", {"type": click.Choice(["EC", "RSA"]), "default": "EC", "help": "P-256, or 2048 bits."}),
    ),
    "Registration": (
        ("--auto-register-group", {"default": "", "help": "WorkloadGroup to make a WorkloadEntry from."}),
        (
            "--consul-address",
            {"default": "127.0.0.1:8500", "type": address, "help": "The Consul agent of the machine."},
        ),
        ("--consul-token-file", {"type": _PATH, "help": "File with a token for it."}),
        ("--consul-service", {"type": service, "help": "Id of a service there, or in the file one to register."}),
    ),
    "The application": (
        (
            "--probe",
            {"type": objects, "help": "Readiness probe, as of a WorkloadGroup.  [default: that of the group]"},
        ),
        ("--app-probers", {"type": yaml, "help": "Probes to answer for it, as Istio's ISTIO_KUBE_APP_PROBERS."}),
        (
            "--scrape",
            {"type": yaml, "help": "Metrics of the application: {scrape, port, path}.  [default: the annotations]"},
        ),
    ),
    "Metrics that leave the machine": (
        (
            "--secure-metrics-port",
            {"type": _PORT, "help": "The merged metrics over mutual TLS, such as 15092.  [default: the ProxyConfig's]"},
        ),
        (
            "--secure-metrics-principal",
            _many(
                "TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT that may read them.  [default: all of the mesh]", type=principal
            ),
        ),
        ("--otel-metrics", {"type": receiver, "help": "OTLP receiver over HTTP, http://HOST:4318, to push them to."}),
        ("--otel-metrics-interval", {"type": interval, "help": "Time between two pushes.  [default: 60s]"}),
        ("--otel-tls-ca", {"type": _PATH, "help": "PEM file of its roots, for https.  [default: the system's]"}),
    ),
    "Envoy": (
        ("--envoy", {"type": _PATH, "help": "The binary.  [default: $ENVOY, next to this Python, on PATH]"}),
        (
            "--envoy-log-level",
            {"type": click.Choice(ENVOY_LEVELS), "default": "warning", "help": "Level of Envoy's log."},
        ),
        (
            "--envoy-component-log-level",
            {"cls": ListOption, "default": "", "help": "Levels of its components, NAME:LEVEL,..."},
        ),
        ("--envoy-flag", _many("One more flag for Envoy.")),
        ("--base-id", {"type": click.IntRange(min=0), "help": "Base id of its shared memory.  [default: a free one]"}),
        ("--custom-bootstrap", {"type": _PATH, "help": "File, YAML or JSON, merged over its bootstrap."}),
        ("--proxy-config", {"type": yaml, "help": "Istio's ProxyConfig, over that of the control plane."}),
        ("--minimum-drain", {"type": duration, "default": "5s", "help": "Shortest drain, with the next one."}),
        (
            "--exit-on-zero-active-connections/--exit-after-drain",
            {"default": False, "help": "End the drain when no connection is left, or after its duration."},
        ),
    ),
    "Ports (0: none, but for Envoy's admin)": (
        (
            "--admin-port",
            {"type": click.IntRange(1, 65535), "default": 15000, "help": "Envoy's admin interface, on 127.0.0.1."},
        ),
        ("--status-port", {"type": _PORT, "default": 15020, "help": "Readiness, merged metrics, probes."}),
        (
            "--readiness-port",
            {"type": _PORT, "default": 15021, "help": "Envoy's /healthz/ready; none without --status-port."},
        ),
        ("--prometheus-port", {"type": _PORT, "default": 15090, "help": "Envoy's /stats/prometheus."}),
        ("--dns-port", {"type": _PORT, "default": 15053, "help": "DNS, UDP and TCP."}),
    ),
    "DNS": (
        ("--dns/--no-dns", {"default": False, "help": "Answer names of the mesh; forward the others."}),
        ("--dns-listen", {"type": ip_address, "default": "127.0.0.1", "help": "Address to answer on."}),
        (
            "--dns-upstream",
            _many("IP or IP:PORT of a name server.  [default: of --resolv-conf]", type=name_server),
        ),
        ("--resolv-conf", {"type": _PATH, "default": "/etc/resolv.conf", "help": "Name servers and search domains."}),
    ),
    "Files": (
        ("--config", {"type": _PATH, "help": f"File of settings, YAML.  [default: {DEFAULT_FILE}, if there is one]"}),
        ("--state-dir", {"type": _PATH, "help": "Keys, certificates, last answers.  [default: the system's]"}),
        ("--run-dir", {"type": _PATH, "help": "Sockets and Envoy's files.  [default: the system's]"}),
    ),
    "Logs": (
        ("--log-level", {"cls": ListOption, "type": levels, "default": "info", "help": "level, or scope:level,..."}),
        ("--log-format", {"type": click.Choice(["text", "json"]), "default": "text", "help": "text or json."}),
    ),
    "Other options": (("--check", {"is_flag": True, "help": "Judge the settings, and run nothing."}),),
}
"""Each section of the help with its flags, and what click takes of each."""


def name_of(flag: str) -> str:
    """The name of a flag without dashes, which is its key in the file."""
    return flag.split("/")[0].removeprefix("--")
