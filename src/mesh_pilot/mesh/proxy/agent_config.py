"""The ProxyConfig that an agent starts its proxy with.

From the weakest to the strongest (Istio: "ProxyConfig"): ``defaultConfig`` of the mesh, the ProxyConfig object of the
root namespace, that of the proxy's namespace, the annotation ``proxy.istio.io/config``, and the ProxyConfig object
that selects the workload. ``proxyMetadata`` is joined by name; of other fields the strongest is taken whole. The
readiness probe is that of the proxy's WorkloadGroup, if it has one. Where zone aware load balancing is asked for, the
proxy has a local cluster unless ``proxyMetadata`` says otherwise.

What is as in Istio's defaults is omitted: those are for a container with istiod next to it, and an agent has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.networking.v1beta1 import ProxyConfig as ProxyConfigObject
from mesh_pilot.base.reading import as_string
from mesh_pilot.engine import derived
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.mesh import default_proxy, overlay
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.mesh.selection.workloads import Labels, oldest_general, oldest_selecting
from mesh_pilot.mesh.settings.zone_awareness import wants_local_clusters
from mesh_pilot.model.config import ConfigKey, Origin, Problem, Severity
from mesh_pilot.model.proxy import SELF_DISCOVERY, Proxy
from mesh_pilot.world.service_entries import group_of
from mesh_pilot.world.view import View

KIND = "ProxyConfig"
ANNOTATION = "proxy.istio.io/config"
MAX_ANNOTATION = 16 * 1024
"""Characters of an annotation that is read: a machine may say what it likes, and YAML takes long to read."""
AUTO_REGISTER_GROUP = "AUTO_REGISTER_GROUP"
"""Node metadata: the WorkloadGroup that the proxy is to be a member of."""
_LOCAL_CLUSTER_ON = f"ISTIO_META_{SELF_DISCOVERY}"
WORKLOAD_ENTRY = "WORKLOAD_ENTRY"
"""Node metadata: the WorkloadEntry of the proxy."""


@attrs.frozen(cache_hash=True)
class AgentFacts:
    """The properties of a proxy that its agent's settings depend on, besides namespace and labels."""

    group: str = ""
    workload_entry: str = ""
    annotation: str = ""
    """YAML of a ProxyConfig."""


@attrs.frozen(cache_hash=True)
class AgentKey:
    """All that an agent's settings depend on, except the World."""

    namespace: str
    labels: Labels
    facts: AgentFacts


def agent_facts(proxy: Proxy) -> AgentFacts | None:
    """The facts of an agent's own stream; None for a stream of a proxy."""
    if not proxy.agent:
        return None
    return AgentFacts(
        proxy.text(AUTO_REGISTER_GROUP),
        proxy.text(WORKLOAD_ENTRY),
        as_string(proxy.metadata, "ANNOTATIONS", ANNOTATION),
    )


@derived
def agent_config(view: View, key: AgentKey) -> mesh_api.ProxyConfig:
    """The effective ProxyConfig, without the roots."""
    found = beyond_defaults(view.mesh().default_config)
    for namespace in dict.fromkeys((view.root_namespace, key.namespace)):
        general = oldest_general(view, KIND, namespace)
        found = _with_object(found, general.spec if general is not None else None)
    found = with_annotation(found, key.facts.annotation)
    selecting = oldest_selecting(view, KIND, key.namespace, key.labels)
    found = _with_object(found, selecting.spec if selecting is not None else None)
    if (group := _group(view, key)) is not None:
        config = view.config(group)
        if config is not None and config.spec.probe is not None:
            found = overlay(found, mesh_api.ProxyConfig(readiness_probe=config.spec.probe), {"readinessProbe": {}})
    if wants_local_clusters(view, key.namespace):
        metadata = {_LOCAL_CLUSTER_ON: "true", **found.proxy_metadata}
        found = overlay(found, mesh_api.ProxyConfig(proxy_metadata=metadata), {"proxyMetadata": metadata})
    return found


def _group(view: View, key: AgentKey) -> ConfigKey | None:
    """The WorkloadGroup of a proxy: the one that it names, else that of its WorkloadEntry."""
    if key.facts.group:
        return ConfigKey("WorkloadGroup", key.namespace, key.facts.group)
    if key.facts.workload_entry:
        entry = view.config(ConfigKey("WorkloadEntry", key.namespace, key.facts.workload_entry))
        return group_of(entry) if entry is not None else None
    return None


def beyond_defaults(given: mesh_api.ProxyConfig | None) -> mesh_api.ProxyConfig:
    """A ProxyConfig without what is as in Istio's defaults."""
    if given is None:
        return mesh_api.ProxyConfig()
    defaults = default_proxy()
    names = (field.python_name for field in descriptor_of(mesh_api.ProxyConfig).fields)
    values = {name: getattr(given, name) for name in names}
    differing: dict[str, Any] = {n: value for n, value in values.items() if value != getattr(defaults, n)}
    return mesh_api.ProxyConfig(**differing)


def _with_object(under: mesh_api.ProxyConfig, spec: ProxyConfigObject | None) -> mesh_api.ProxyConfig:
    if spec is None:
        return under
    given: dict[str, Any] = {}
    if spec.concurrency is not None:
        given["concurrency"] = spec.concurrency
    if spec.environment_variables:
        given["proxyMetadata"] = {**under.proxy_metadata, **spec.environment_variables}
    if spec.image is not None:
        given["image"] = {"imageType": spec.image.image_type}
    return _overlaid(under, given)


def with_annotation(under: mesh_api.ProxyConfig, text: str) -> mesh_api.ProxyConfig:
    """An annotation with anything wrong in it is ignored, as istiod does."""
    if not text or len(text) > MAX_ANNOTATION:
        return under
    document = next(load(text, Origin(ANNOTATION)), None)
    if not isinstance(document, Document):
        return under
    given = dict(document.data)
    own = given.get("proxyMetadata")
    if isinstance(own, Mapping):
        given["proxyMetadata"] = {**under.proxy_metadata, **own}
    return _overlaid(under, given)


def _overlaid(under: mesh_api.ProxyConfig, data: Mapping[str, Any]) -> mesh_api.ProxyConfig:
    problems: list[Problem] = []
    over = read_message(mesh_api.ProxyConfig, data, KIND, problems)
    if over is None or any(problem.severity is Severity.ERROR for problem in problems):
        return under
    return overlay(under, over, data)
