"""The agent's settings, of the values that click has collected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.settings import (
    AgentFolders,
    AgentSettings,
    ConsulAgentSettings,
    CredentialSettings,
    DnsSettings,
    EnvoySettings,
    PlaneSettings,
    Ports,
)
from mesh_pilot.cli.proxy import machine
from mesh_pilot.cli.proxy.flags import name_of, variable_of
from mesh_pilot.cli.proxy.values import proxy_config
from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.service import Locality


def agent_settings(
    kind: str, given: Mapping[str, Any], below: Mapping[str, Any], environ: Mapping[str, str]
) -> AgentSettings:
    """``below`` has what was found for settings that are objects, which ``given`` is merged over. Raises UsageError."""
    merged = {name: {**dict(below.get(name, ())), **dict(given[name])} for name in ("label", "annotation", "metadata")}
    return AgentSettings(
        node=_node(kind, given, merged),
        folders=_folders(given, environ),
        planes=_planes(given),
        credentials=_credentials(given),
        ports=_ports(given),
        envoy=EnvoySettings(
            binary=_absolute(given["envoy"]),
            log_level=given["envoy_log_level"],
            component_log_level=given["envoy_component_log_level"],
            base_id=given["base_id"],
            extra_flags=tuple(given["envoy_flag"]),
            custom_bootstrap=_absolute(given["custom_bootstrap"]),
            minimum_drain=given["minimum_drain"],
            exit_on_zero_active_connections=given["exit_on_zero_active_connections"],
        ),
        dns=DnsSettings(
            enabled=given["dns"],
            resolv_conf=given["resolv_conf"],
            upstreams=tuple(given["dns_upstream"]),
            listen=given["dns_listen"],
        ),
        consul=ConsulAgentSettings(address=given["consul_address"], token_file=_absolute(given["consul_token_file"])),
        delta=given["delta"],
        proxy_config={**below.get("proxy_config", {}), **proxy_config(given["proxy_config"] or {})},
        auto_register_group=given["auto_register_group"],
    )


def _node(kind: str, given: Mapping[str, Any], merged: Mapping[str, Mapping[str, Any]]) -> EnvoyNode:
    ip = given["ip"] or machine.default_address()
    if not ip:
        raise click.UsageError("this machine has no default route: give its address with --ip")
    metadata: dict[str, Any] = {"SERVICE_ACCOUNT": given["service_account"]}
    if merged["annotation"]:
        metadata["ANNOTATIONS"] = merged["annotation"]
    if given["dns"]:
        metadata |= {"DNS_CAPTURE": "true", "DNS_AUTO_ALLOCATE": "true"}
    if given["auto_register_group"]:
        metadata["AUTO_REGISTER_GROUP"] = given["auto_register_group"]
    return EnvoyNode(
        name=given["name"] or machine.default_name(),
        namespace=given["namespace"],
        ip=ip,
        type=NodeType(kind),
        domain=given["domain"],
        labels=merged["label"],
        interception=Interception(given["interception"]),
        locality=Locality.parse(given["locality"]),
        metadata={**metadata, **merged["metadata"]},
    )


def _folders(given: Mapping[str, Any], environ: Mapping[str, str]) -> AgentFolders:
    state = given["state_dir"] or machine.state_folder(environ)
    run = given["run_dir"] or machine.run_folder(environ, state)
    return AgentFolders(state=state.absolute(), run=run.absolute())


def _planes(given: Mapping[str, Any]) -> PlaneSettings:
    if not given["pilot"]:
        raise click.UsageError(f"no control plane: name one with {_ways('--pilot')}, such as 10.0.0.5:15012")
    if not given["plaintext"] and not given["tls_ca"]:
        raise click.UsageError(
            f"no roots that the control plane is known by: save what mesh-pilot ca root prints there, and give"
            f" {_ways('--tls-ca')}"
        )
    return PlaneSettings(
        addresses=tuple(Pilot.parse(text) for text in given["pilot"]),
        ca=_absolute(given["tls_ca"]),
        server_name=given["tls_server_name"],
        plaintext=given["plaintext"],
    )


def _credentials(given: Mapping[str, Any]) -> CredentialSettings:
    files = [given[name] for name in ("cert_chain", "key", "root_cert")]
    if any(files) and not all(files):
        raise click.UsageError("a certificate that is there already needs all of --cert-chain, --key and --root-cert")
    return CredentialSettings(
        token_file=_absolute(given["token_file"]),
        consul_token_file=_absolute(given["consul_login_token_file"]),
        certificate=_absolute(given["cert_chain"]),
        key=_absolute(given["key"]),
        roots=_absolute(given["root_cert"]),
        sds_socket=_absolute(given["sds_socket"]),
        lifetime=given["cert_ttl"],
        key_type=given["key_type"],
    )


def _ports(given: Mapping[str, Any]) -> Ports:
    flags = {name: f"--{name}-port" for name in ("admin", "status", "readiness", "prometheus", "dns")}
    ports = {name: given[f"{name}_port"] for name in flags}
    seen: dict[int, str] = {}
    for name, port in ports.items():
        if port and port in seen:
            raise click.UsageError(f"{flags[seen[port]]} and {flags[name]} are both {port}: change one of them")
        seen[port] = name
    return Ports(**ports)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _ways(flag: str) -> str:
    return f"{flag}, {variable_of(flag)} or {name_of(flag)} in the file"
