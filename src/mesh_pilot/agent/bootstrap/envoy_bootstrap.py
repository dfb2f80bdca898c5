"""The bootstrap file with which an Envoy finds mesh-pilot: who it is, and where its ADS stream goes.

The one writer behind ``mesh-pilot envoy-bootstrap``, ``mesh-pilot demo`` and the tests. Shapes: Envoy's
``config.bootstrap.v3.Bootstrap`` ("Configuration reference: Bootstrap") and the node metadata that Istio's agent
sends (``INTERCEPTION_MODE``, ``LABELS``, ...).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import attrs

from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.service import NOWHERE, Locality
from mesh_pilot.net.rpc.errors import AddressError
from mesh_pilot.net.rpc.net import UnixAddress, parse_address

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"

XDS_CLUSTER = "xds-grpc"
"""Name of the static cluster that reaches the control plane, as Istio's bootstrap calls it."""

DRAIN_FLAGS = ("--drain-time-s", "45", "--drain-strategy", "immediate")
"""Istio's drain settings: after a listener change, old connections end with their next request.

By default Envoy closes them at random over ten minutes; a revoked permission could be used until then.
"""


@attrs.frozen
class EnvoyNode:
    """The identity of an Envoy; ``mesh_pilot.model.proxy.parse_proxy`` reads it back."""

    name: str
    """Workload name, such as ``web-1``; the node id has the namespace appended."""
    namespace: str = "default"
    ip: str = "127.0.0.1"
    """The address under which services of the mesh list this workload."""
    type: NodeType = NodeType.SIDECAR
    domain: str = "cluster.local"
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """Selected by Gateways, Sidecars, WorkloadEntries; ``app`` also names the Envoy cluster of the node."""
    interception: Interception = Interception.REDIRECT
    locality: Locality = NOWHERE
    metadata: Mapping[str, Json] = attrs.field(factory=dict)
    """Merged over the metadata that the fields above make."""
    other_ip: str = ""
    """An address of the other IP version, if it has both: its listeners are at addresses of both."""

    @property
    def id(self) -> str:
        return f"{self.type}~{self.ip}~{self.name}.{self.namespace}~{self.namespace}.svc.{self.domain}"

    @property
    def ips(self) -> tuple[str, ...]:
        """All addresses."""
        return tuple(filter(None, (self.ip, self.other_ip)))

    @property
    def is_ipv6(self) -> bool:
        """The version of its first address."""
        return ":" in self.ip

    @property
    def wildcards(self) -> tuple[str, ...]:
        """The wildcard addresses of its IP versions."""
        return tuple("::" if ":" in ip else "0.0.0.0" for ip in self.ips)

    @property
    def cluster(self) -> str:
        """Envoy's name for the service that it belongs to."""
        return f"{self.labels.get('app', self.name)}.{self.namespace}"

    @property
    def kept_for(self) -> str:
        """The proxy that answers on disk are for."""
        return f"{self.id} {self.cluster}"

    def to_dict(self) -> dict[str, Json]:
        """Envoy's ``core.v3.Node`` as JSON."""
        metadata: dict[str, Json] = {
            "NAME": self.name,
            "NAMESPACE": self.namespace,
            "INSTANCE_IPS": ",".join(self.ips),
            "LABELS": dict(self.labels),
        }
        if self.type is NodeType.SIDECAR:
            metadata["INTERCEPTION_MODE"] = self.interception.value
        node: dict[str, Json] = {
            "id": self.id,
            "cluster": self.cluster,
            "metadata": {**metadata, **self.metadata},
        }
        if self.locality != NOWHERE:
            node["locality"] = _locality(self.locality)
        return node


CERTIFICATE_SECRET = "control-plane-certificate"
CA_SECRET = "control-plane-ca"
"""Names of the secrets with which an Envoy reaches the control plane, and of their files."""


@attrs.frozen
class ClientTls:
    """PEM files with which an Envoy speaks mutual TLS to the control plane's secure port."""

    ca: Path
    certificate: Path
    key: Path
    server_name: str = ""
    """DNS name to ask for (SNI) and to find in the server's certificate; empty checks only who signed it."""
    sds: Path | None = None
    """Folder of the files of ``sds_files``, through which Envoy reads replaced PEM files; None: it reads them once."""

    def sds_files(self) -> Mapping[Path, str]:
        """The files that ``sds`` must contain when Envoy starts: one for its certificate, and one for the CA.

        Envoy reads the PEM files again when a file is renamed into their folder.
        """
        if self.sds is None:
            return {}
        pair = self._certificate()
        if self.certificate.parent == self.key.parent:
            pair |= self._watched(self.certificate)  # else Envoy watches each file separately
        certificate: dict[str, Json] = {"tls_certificate": pair}
        trusted: dict[str, Json] = {"validation_context": {**self._trusted(), **self._watched(self.ca)}}
        secrets = ((CERTIFICATE_SECRET, certificate), (CA_SECRET, trusted))
        return {self.sds / f"{name}.yaml": to_yaml(_secret(name, secret)) for name, secret in secrets}

    def context(self) -> dict[str, Json]:
        """Envoy's ``CommonTlsContext``."""
        alpn: dict[str, Json] = {"alpn_protocols": ["h2"]}
        if self.sds is None:
            return {**alpn, "tls_certificates": [self._certificate()], "validation_context": self._trusted()}
        return {
            **alpn,
            "tls_certificate_sds_secret_configs": [self._sds_config(CERTIFICATE_SECRET)],
            "validation_context_sds_secret_config": self._sds_config(CA_SECRET),
        }

    def _sds_config(self, name: str) -> Json:
        path = str(self.sds / f"{name}.yaml") if self.sds else ""
        return {"name": name, "sds_config": {"path_config_source": {"path": path}, "resource_api_version": "V3"}}

    def _certificate(self) -> dict[str, Json]:
        return {
            "certificate_chain": {"filename": str(self.certificate)},
            "private_key": {"filename": str(self.key)},
        }

    def _trusted(self) -> dict[str, Json]:
        expected: dict[str, Json] = {}
        if self.server_name:
            expected["match_typed_subject_alt_names"] = [{"san_type": "DNS", "matcher": {"exact": self.server_name}}]
        return {"trusted_ca": {"filename": str(self.ca)}, **expected}

    def _watched(self, file: Path) -> dict[str, Json]:
        return {"watched_directory": {"path": str(file.parent)}}


def _secret(name: str, secret: Mapping[str, Json]) -> dict[str, Json]:
    """The file of an SDS resource."""
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
    return {"resources": [{"@type": kind, "name": name, **secret}]}


def envoy_bootstrap(
    node: EnvoyNode,
    *pilots: str,
    delta: bool = False,
    admin: str = "127.0.0.1:0",
    tls: ClientTls | None = None,
    comes_again_soon: bool = False,
    load_reports: bool = True,
) -> dict[str, Json]:
    """A complete bootstrap, with all dynamic resources over one ADS stream to one of ``pilots``.

    ``pilots`` and ``admin`` are ``host:port``, ``[::1]:port`` or ``unix:///path``; Envoy resolves a host name of
    a pilot. A pilot may have ``@region/zone`` after it: those in the node's zone are preferred, then those in its
    region.
    With ``delta`` the stream is Delta (incremental) xDS, else State of the World. Raises AddressError for any other
    form. ``comes_again_soon``: within a second of the end of its stream, for one that is on the same machine; by
    default Envoy waits for up to 30. ``load_reports``: it tells the control plane what its
    clusters are asked for (LRS).
    """
    service: dict[str, Json] = {"cluster_name": XDS_CLUSTER}
    if comes_again_soon:
        service["retry_policy"] = {"retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"}}
    ads: Json = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
    parts: dict[str, Json] = {"cluster_manager": {"load_stats_config": _load_stats()}} if load_reports else {}
    return {
        "node": node.to_dict(),
        "admin": {"address": _address(admin)},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC" if delta else "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [{"envoy_grpc": service}],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {"clusters": [_xds_cluster([Pilot.parse(each) for each in pilots], node.locality, tls)]},
        **parts,
        # By default Envoy refuses regular expressions of over 100 instructions; Istio's bootstrap raises this too.
        "layered_runtime": {
            "layers": [{"name": "static", "static_layer": {"re2": {"max_program_size": {"error_level": 32768}}}}]
        },
    }


def _load_stats() -> Json:
    """The server of load reports. Envoy tries one without that service again every 5 s, with a warning each time."""
    services: Json = [{"envoy_grpc": {"cluster_name": XDS_CLUSTER}}]
    return {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": services}


def to_yaml(bootstrap: Mapping[str, Json]) -> str:
    """The bootstrap as the YAML that ``envoy -c`` reads."""
    import yaml  # the agent writes JSON, and is smaller without

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True  # without aliases, although the same config source occurs twice

    return yaml.dump(bootstrap, Dumper=Plain, sort_keys=False)


@attrs.frozen
class Pilot:
    """The address of a control plane's xDS port, as Envoy connects to it."""

    address: str
    """``host:port``, ``[::1]:port`` or ``unix:///path``."""
    locality: Locality = NOWHERE
    """The region and zone."""

    @classmethod
    def parse(cls, text: str) -> Pilot:
        """Read ``ADDRESS`` or ``ADDRESS@REGION/ZONE``. Raises AddressError."""
        address, at, locality = text.partition("@") if not text.startswith("unix:") else (text, "", "")
        if at and not locality:
            raise AddressError(f"{text!r} names no locality after @; write {address}@REGION/ZONE")
        _address(address)
        return cls(address, Locality.parse(locality))

    def distance(self, locality: Locality) -> int:
        """0 in the zone of ``locality``, 1 in its region, else 2; 0 everywhere for a locality that is not known."""
        if locality == NOWHERE or self.locality[:2] == locality[:2]:
            return 0
        return 1 if self.locality.region == locality.region else 2


SEVERAL_PILOTS: Mapping[str, Json] = {
    # One that does not answer is left out after its first failure, and tried again after 10 s, then 20 s, then 30 s.
    "outlier_detection": {
        "interval": "1s",
        "base_ejection_time": "10s",
        "max_ejection_time": "30s",
        "max_ejection_time_jitter": "5s",
        "max_ejection_percent": 100,
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 1,
        "enforcing_consecutive_local_origin_failure": 100,
        "consecutive_gateway_failure": 1,
        "enforcing_consecutive_gateway_failure": 100,
        # One that refuses now and then, or has few streams, is not worse than others.
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
    },
}
"""The part of the cluster by which Envoy turns to another of several control planes."""


def _endpoints(pilots: Sequence[Pilot], locality: Locality) -> list[Json]:
    """All control planes, by priority and locality. Priorities have no gaps: Envoy would not pass them."""
    distances = sorted({pilot.distance(locality) for pilot in pilots})
    groups: dict[tuple[int, Locality], list[Json]] = {}
    for pilot in pilots:
        group = groups.setdefault((distances.index(pilot.distance(locality)), pilot.locality), [])
        group.append({"endpoint": {"address": _address(pilot.address)}})
    endpoints: list[Json] = []
    for (priority, where), members in sorted(groups.items(), key=lambda item: item[0][0]):
        one: dict[str, Json] = {"lb_endpoints": members}
        if where != NOWHERE:
            one["locality"] = _locality(where)
        if priority:
            one["priority"] = priority
        endpoints.append(one)
    return endpoints


def _locality(locality: Locality) -> dict[str, Json]:
    """Envoy's ``core.v3.Locality`` as JSON."""
    parts = zip(("region", "zone", "sub_zone"), locality, strict=True)
    return {key: value for key, value in parts if value}


def _xds_cluster(pilots: Sequence[Pilot], locality: Locality, tls: ClientTls | None) -> Json:
    if not pilots:
        raise AddressError("no control plane to connect to")
    needs_dns = any(not _needs_no_dns(pilot.address) for pilot in pilots)
    if needs_dns and any(pilot.address.startswith("unix:") for pilot in pilots):
        raise AddressError("Envoy takes no Unix sockets next to host names: give IP addresses")
    assignment: dict[str, Json] = {"cluster_name": XDS_CLUSTER, "endpoints": _endpoints(pilots, locality)}
    cluster: dict[str, Json] = {
        "name": XDS_CLUSTER,
        "type": "STRICT_DNS" if needs_dns else "STATIC",
        "connect_timeout": "1s",
        "load_assignment": assignment,
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {
                    # A control plane that vanished without a goodbye is noticed within 40 s.
                    "http2_protocol_options": {"connection_keepalive": {"interval": "30s", "timeout": "10s"}}
                },
            }
        },
    }
    if len(pilots) > 1:
        # Others are used when none of a priority is left, not as soon as some are missing.
        assignment["policy"] = {"overprovisioning_factor": 100_000}
        cluster.update(SEVERAL_PILOTS)
    if tls is not None:
        context: dict[str, Json] = {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": tls.context(),
        }
        if tls.server_name:
            context["sni"] = tls.server_name
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    return cluster


def _address(text: str) -> dict[str, Json]:
    """Envoy's ``core.v3.Address`` of an address as people write it."""
    address = parse_address(text)
    if isinstance(address, UnixAddress):
        return {"pipe": {"path": str(address.path)}}
    if not address.host:
        raise AddressError(f"{text!r} names no host to connect to; write host:port, [::1]:port or unix:///path")
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def _needs_no_dns(text: str) -> bool:
    address = parse_address(text)
    if isinstance(address, UnixAddress):
        return True
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return True
