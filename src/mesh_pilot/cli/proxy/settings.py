"""The agent's settings, of the values that click has collected.

Design note. A value can come from seven places: flag, variable, variable of Istio, labels and annotations of the Pod,
the file, a ProxyConfig, and what the Consul agent or a proof of identity says. Click merges the first five, as its
``default_map`` is below flags and variables; the others are looked up only for settings not given (``unset``),
since asking takes time and may fail. So `agent_settings` goes in that order, and each step fills what is still unset.

The flags are a table, not fields of attrs classes as those of discovery (``model.flags``): the help of the agent loads
no library but click, and the agent is started on every machine of a mesh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Set
from pathlib import Path
from typing import Any

import click

from mesh_pilot.agent.bootstrap.configured import LOCAL_METRICS
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.bootstrap.proxy_config import AT_THE_PLANE, METADATA, Place, effects, overlay
from mesh_pilot.agent.bootstrap.statistics_config import NOT_READ, annotation_problems
from mesh_pilot.agent.bootstrap.system_roots import SYSTEM_ROOTS, system_roots
from mesh_pilot.agent.identity.folder import CHAIN
from mesh_pilot.agent.identity.identity import FOLDER
from mesh_pilot.agent.run.bootstrap import DNS_CAPTURE, EXIT_ON_ZERO, MINIMUM_DRAIN
from mesh_pilot.agent.settings import (
    AgentFolders,
    AgentSettings,
    ConsulAgentSettings,
    CredentialSettings,
    DnsSettings,
    EnvoySettings,
    ExportSettings,
    PlaneSettings,
    Ports,
)
from mesh_pilot.agent.status.exports import EXPORT_NAMES
from mesh_pilot.cli.lib.options import variable_of
from mesh_pilot.cli.proxy import machine
from mesh_pilot.cli.proxy.consul_service import from_consul
from mesh_pilot.cli.proxy.defaults import proxy_config_of
from mesh_pilot.cli.proxy.flags import PREFIX, name_of
from mesh_pilot.cli.proxy.istio_names import ANSWERED, CPU_LIMIT, META, Remark
from mesh_pilot.cli.proxy.pod_info import pod_annotations
from mesh_pilot.cli.proxy.proven_names import proven_names
from mesh_pilot.cli.proxy.values import read_object
from mesh_pilot.model.proxy import VIRTUAL_HOSTS, Interception, NodeType
from mesh_pilot.model.service import Locality

CONFIG_ANNOTATION = "proxy.istio.io/config"
ANNOTATIONS = {
    "sidecar.istio.io/discoveryAddress": "discoveryAddress",
    "sidecar.istio.io/interceptionMode": "interceptionMode",
    "status.sidecar.istio.io/port": "statusPort",
}
"""Annotations that are fields of the ProxyConfig."""
SCRAPED = "prometheus.io/"
"""Prefix of the annotations about the application's metrics."""

_READ_METADATA = (EXIT_ON_ZERO, MINIMUM_DRAIN, LOCAL_METRICS, *EXPORT_NAMES)
"""Names in ``proxyMetadata`` that have an effect here; others may be node metadata."""
_NO_EFFECT = "field of the proxy config has no effect"
_OF_OTHERS = {
    "caCertificatesPem": "only the control plane says whom else to trust",
    **dict.fromkeys(("lightstep", "stackdriver", "openCensusAgent"), "a current Envoy has no such tracer"),
}
"""Fields that have an effect elsewhere, or none in an object that has one."""


def agent_settings(
    kind: str,
    given: MutableMapping[str, Any],
    unset: Set[str],
    below: Mapping[str, Any],
    environ: Mapping[str, str],
    remarks: list[Remark],
) -> AgentSettings:
    """``unset``: the settings that were not given, by name; other settings, or the Consul agent, may say them.

    ``below`` has what the file and Istio's variables say of settings that are merged. Raises UsageError, AgentError.
    """
    merged = {name: {**dict(below.get(name, ())), **dict(given[name])} for name in ("label", "annotation", "metadata")}
    annotated = _annotated(merged["annotation"], remarks)
    of_pod = pod_annotations()  # had their effect when the sidecar was injected
    remarks += [
        Remark("annotation has no effect", {"annotation": name, "reason": reason})
        for name, reason in annotation_problems(merged["annotation"])
        if reason is not NOT_READ or name not in of_pod
    ]
    own = _proxy_config(given, below, merged["annotation"], remarks)
    config = overlay(annotated, own)
    _remark_on_idle(config, remarks)
    _fill(given, unset, _settings_of(config))
    folders = _folders(given, environ)
    consul = _consul(given)
    if consul.service_id:
        found, labels = from_consul(consul, folders.state, remarks, keep=not given["check"])
        _fill(given, unset, found)
        merged["label"] = {**labels, **merged["label"]}
    own_chain = folders.state / FOLDER / CHAIN
    _fill(given, unset, proven_names(token=given["token_file"], certificates=(given["cert_chain"], own_chain)))
    return AgentSettings(
        node=_node(kind, given, merged, own, {name: config[name] for name in AT_THE_PLANE if name in config}, environ),
        folders=folders,
        planes=_planes(given),
        credentials=_credentials(given),
        ports=_ports(given, unset),
        envoy=EnvoySettings(
            binary=_absolute(given["envoy"]),
            log_level=given["envoy_log_level"],
            component_log_level=given["envoy_component_log_level"],
            concurrency=_cpu_limit(environ, remarks),
            base_id=given["base_id"],
            extra_flags=tuple(given["envoy_flag"]),
            custom_bootstrap=_absolute(given["custom_bootstrap"]),
            minimum_drain=_given(given, unset, "minimum_drain"),
            exit_on_zero_active_connections=_given(given, unset, "exit_on_zero_active_connections"),
        ),
        dns=DnsSettings(
            enabled=given["dns"],
            resolv_conf=given["resolv_conf"],
            upstreams=tuple(given["dns_upstream"]),
            listen=given["dns_listen"],
        ),
        consul=consul,
        delta=given["delta"],
        traffic=given["traffic"],
        proxy_config=own,
        annotated_proxy_config=annotated,
        probes=given["probe"] or ([own["readinessProbe"]] if "readinessProbe" in own else ()),
        app_probers=given["app_probers"] or {},
        scrape=given["scrape"] or _scrape(merged["annotation"]),
        exports=ExportSettings(
            secure_port=given["secure_metrics_port"],
            secure_principals=tuple(given["secure_metrics_principal"]),
            endpoint=given["otel_metrics"] or "",
            interval_seconds=given["otel_metrics_interval"],
            roots=_absolute(given["otel_tls_ca"]),
        ),
        auto_register_group=given["auto_register_group"],
    )


def _fill(given: MutableMapping[str, Any], unset: Set[str], found: Mapping[str, Any]) -> None:
    """Take what was found for settings that were not given."""
    given.update({name: value for name, value in found.items() if name in unset and value is not None})


def _given(given: Mapping[str, Any], unset: Set[str], name: str) -> Any:
    """The value of a setting; None if none was given."""
    return None if name in unset else given[name]


def _proxy_config(
    given: Mapping[str, Any], below: Mapping[str, Any], annotations: Mapping[str, str], remarks: list[Remark]
) -> dict[str, Any]:
    """The ProxyConfig of this machine: the file, ``PROXY_CONFIG``, `ANNOTATIONS`, the flag; the later wins."""
    config = proxy_config_of("proxy-config", below.get("proxy_config", {}), remarks)
    fields = {field: annotations[name] for name, field in ANNOTATIONS.items() if name in annotations}
    config = overlay(config, proxy_config_of("annotations", fields, remarks))
    if given["proxy_config"] and given["proxy_config"] is not below.get("proxy_config"):
        config = overlay(config, proxy_config_of("--proxy-config", given["proxy_config"], remarks))
    return config


def _annotated(annotations: Mapping[str, str], remarks: list[Remark]) -> dict[str, Any]:
    """The ProxyConfig of the annotation for all of its fields."""
    text = annotations.get(CONFIG_ANNOTATION)
    if not text:
        return {}
    place = f"annotation {CONFIG_ANNOTATION}"
    try:
        data = read_object(text)
    except click.BadParameter as error:
        raise click.UsageError(f"{place}: {error.message}") from None
    return proxy_config_of(place, data, remarks)


def _remark_on_idle(config: Mapping[str, Any], remarks: list[Remark]) -> None:
    for name in config:
        where, text = effects()[name]
        if where is Place.NOWHERE:
            fields = {"field": name, "reason": text.replace("`", "")}
            remarks.append(Remark(_NO_EFFECT, fields))
    for name in config.get(METADATA, {}):
        if not name.startswith(META) and name not in _READ_METADATA:
            reason = ANSWERED.get(name, "it is not read there: set the variable, or use the flag, if there is one")
            remarks.append(Remark(_NO_EFFECT, {"field": f"{METADATA}.{name}", "reason": reason}))
    for name, reason in _OF_OTHERS.items():
        if name in config or name in config.get("tracing", {}):
            remarks.append(Remark(_NO_EFFECT, {"field": name, "reason": reason}))


def _settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a ProxyConfig of this machine says, too."""
    address = config.get("discoveryAddress")
    variables = config.get(METADATA, {})
    captures_dns = variables.get(f"{META}{DNS_CAPTURE}", "")
    files = {"envoy": config.get("binaryPath"), "custom_bootstrap": config.get("customConfigFile")}
    return {
        "pilot": (address,) if address else None,
        "plaintext": True if config.get("controlPlaneAuthPolicy") == "NONE" else None,
        "admin_port": config.get("proxyAdminPort") or None,
        "status_port": config.get("statusPort"),
        "interception": config.get("interceptionMode"),
        "dns": captures_dns.lower() == "true" if captures_dns else None,
        "auto_register_group": variables.get(f"{META}AUTO_REGISTER_GROUP") or None,
        **{name: Path(file) if file else None for name, file in files.items()},
    }


def _cpu_limit(environ: Mapping[str, str], remarks: list[Remark]) -> int | None:
    """The CPUs that a container may use: Envoy would start a thread for each of its node's."""
    text = environ.get(CPU_LIMIT, "")
    if text and not (text.isascii() and text.isdigit() and 0 < int(text[:5]) < 10_000):
        remarks.append(Remark("variable of istio is refused", {"variable": CPU_LIMIT, "reason": "it is not a number"}))
        return None
    return int(text) if text else None


def _scrape(annotations: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(SCRAPED): text for name, text in annotations.items() if name.startswith(SCRAPED)}


def _consul(given: Mapping[str, Any]) -> ConsulAgentSettings:
    service = given["consul_service"]
    is_definition = isinstance(service, Mapping)
    return ConsulAgentSettings(
        address=given["consul_address"],
        token_file=_absolute(given["consul_token_file"]),
        service=service if is_definition else None,
        service_id="" if is_definition or service is None else service,
    )


def _node(
    kind: str,
    given: Mapping[str, Any],
    merged: Mapping[str, Mapping[str, Any]],
    own: Mapping[str, Any],
    for_plane: Mapping[str, Any],
    environ: Mapping[str, str],
) -> EnvoyNode:
    """The node. ``own``: the ProxyConfig above the control plane's; ``for_plane``: what that shall know of it."""
    ip = given["ip"] or machine.default_address()
    if not ip:
        raise click.UsageError("this machine has no default route: give its address with --ip")
    name = given["name"] or machine.default_name()
    for flag, text in (("--name", name), ("--namespace", given["namespace"]), ("--domain", given["domain"])):
        if not re.fullmatch(r"[^\s~/]+", text):
            raise click.UsageError(f"{flag}: {text!r} is not a name: it has no blanks, slashes or tildes")
    metadata: dict[str, Any] = {
        key.removeprefix(META): text for key, text in own.get(METADATA, {}).items() if key.startswith(META)
    }
    metadata["SERVICE_ACCOUNT"] = given["service_account"]
    metadata.setdefault(SYSTEM_ROOTS, system_roots(environ))
    if given["delta"]:
        # Fixed for the life of this Envoy, so that no upgrade of a control plane takes the tables of one that runs.
        metadata.setdefault(VIRTUAL_HOSTS, "split")
    if merged["annotation"]:
        metadata["ANNOTATIONS"] = merged["annotation"]
    metadata.pop(DNS_CAPTURE, None)
    if given["dns"]:
        metadata = {"DNS_AUTO_ALLOCATE": "true", **metadata, DNS_CAPTURE: "true"}
    if given["auto_register_group"]:
        metadata["AUTO_REGISTER_GROUP"] = given["auto_register_group"]
        metadata.setdefault("WORKLOAD_NAME", given["auto_register_group"])
    if for_plane:
        metadata["PROXY_CONFIG"] = for_plane
    # A sidecar has to be told: what it takes connections over is to be captured as well (`iptables --ip-family`).
    is_dual = kind == NodeType.ROUTER.value if given["dual_stack"] is None else given["dual_stack"]
    return EnvoyNode(
        name=name,
        namespace=given["namespace"],
        ip=ip,
        other_ip=machine.other_address(ip) if is_dual else "",
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
    folders = AgentFolders(state=state.absolute(), run=run.absolute())
    for folder, flag in ((folders.state, "--state-dir"), (folders.run, "--run-dir")):
        if reason := machine.why_unusable(folder, make=not given["check"]):
            raise click.UsageError(f"{folder}: {reason}; name another folder with {flag}")
    if len(str(folders.socket).encode()) > machine.LONGEST_SOCKET:
        raise click.UsageError(
            f"{folders.socket} is too long for a Unix socket, which has at most {machine.LONGEST_SOCKET} bytes: name a"
            " shorter folder with --run-dir"
        )
    return folders


def _planes(given: Mapping[str, Any]) -> PlaneSettings:
    if not given["pilot"]:
        raise click.UsageError(f"no control plane: name one with {_ways('--pilot')}, such as 10.0.0.5:15012")
    ca = _absolute(given["tls_ca"])
    if ca is None and not given["plaintext"]:
        raise click.UsageError(
            "no roots that the control plane is known by: save what mesh-pilot ca root prints there, and name the file"
            f" with {_ways('--tls-ca')}"
        )
    if ca is not None and not given["plaintext"] and (reason := machine.why_unreadable(ca)):
        raise click.UsageError(
            f"--tls-ca {ca}: {reason}; save there what mesh-pilot ca root prints at the control plane"
        )
    return PlaneSettings(
        addresses=tuple(Pilot.parse(text) for text in given["pilot"]),
        ca=ca,
        server_name=given["tls_server_name"],
        plaintext=given["plaintext"],
    )


def _credentials(given: Mapping[str, Any]) -> CredentialSettings:
    files = [given[name] for name in ("cert_chain", "key", "root_cert")]
    if any(files) and not all(files):
        raise click.UsageError("a certificate that is there already needs all of --cert-chain, --key and --root-cert")
    ways = {
        "--token-file": given["token_file"],
        "--consul-login-token-file": given["consul_login_token_file"],
        "--cert-chain": given["cert_chain"],
        "--sds-socket": given["sds_socket"],
    }
    named = [flag for flag, value in ways.items() if value]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} exclude each other: there is one way to prove who we are")
    return CredentialSettings(
        token_file=_absolute(given["token_file"]),
        consul_token_file=_absolute(given["consul_login_token_file"]),
        consul_service=given["consul_login_service"] or given["service_account"],
        certificate=_absolute(given["cert_chain"]),
        key=_absolute(given["key"]),
        roots=_absolute(given["root_cert"]),
        sds_socket=_absolute(given["sds_socket"]),
        lifetime=given["cert_ttl"],
        key_type=given["key_type"],
    )


def _ports(given: Mapping[str, Any], unset: Set[str]) -> Ports:
    names = ("admin", "status", "readiness", "prometheus", "dns")
    ports = {name: given[f"{name}_port"] for name in names if name != "dns" or given["dns"]}
    seen: dict[int, str] = {}
    for name, port in ports.items():
        if port and port in seen:
            raise click.UsageError(f"--{seen[port]}-port and --{name}-port are both {port}: change one of them")
        seen[port] = name
    if (port := given["secure_metrics_port"]) and port in seen:
        raise click.UsageError(f"--{seen[port]}-port and --secure-metrics-port are both {port}: change one of them")
    if not ports["status"] and "readiness_port" in unset:
        ports["readiness"] = 0
    if ports["readiness"] and not ports["status"]:
        raise click.UsageError("--readiness-port is answered by --status-port, which is 0: set both to 0, or neither")
    return Ports(**ports)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _ways(flag: str) -> str:
    return f"{flag}, {variable_of(flag, PREFIX)} or {name_of(flag)} in the file"
