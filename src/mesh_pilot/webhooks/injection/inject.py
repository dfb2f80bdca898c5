"""The injection of a sidecar into a Pod, from its settings to the Pod that comes out of it.

Injecting twice is as injecting once: what was injected before is taken out first, by the annotation
``sidecar.istio.io/status``, and what the user wrote about the container ``istio-proxy`` is kept in the annotation
``proxy.istio.io/overrides``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from mesh_pilot.config.mesh import default_proxy
from mesh_pilot.webhooks.injection import annotations as names
from mesh_pilot.webhooks.injection.annotations import (
    AnnotationError,
    agent_log_level,
    annotation_warnings,
    check_annotations,
    volumes_of,
)
from mesh_pilot.webhooks.injection.configuration import InjectionSettings
from mesh_pilot.webhooks.injection.decision import decide
from mesh_pilot.webhooks.injection.merge import Pod, overlaid
from mesh_pilot.webhooks.injection.probes import PROXY, app_probers, as_variable, rewritten
from mesh_pilot.webhooks.injection.probes import VARIABLE as PROBERS
from mesh_pilot.webhooks.injection.scraping import VARIABLE as SCRAPING
from mesh_pilot.webhooks.injection.scraping import ScrapingError, is_true, merged_scraping
from mesh_pilot.webhooks.injection.template import InjectionTemplateError, InjectionTemplates
from mesh_pilot.webhooks.injection.workload import PodOwner, workload_of

INIT = "istio-init"
AUTO = "auto"
"""The image of a container that the user describes, and whose image is ours."""
NETWORK_LABEL = "topology.istio.io/network"
PROXY_USER = 1337

_LISTS = ("initContainers", "containers", "volumes", "imagePullSecrets")
_OF_MACHINE = ("binaryPath", "controlPlaneAuthPolicy", "customConfigFile", "discoveryAddress", "proxyAdminPort",
               "statusPort")  # fmt: skip
"""Fields of a ProxyConfig that count only if the agent's own machine says them. All others come from the control plane
while the Pod runs, where a change needs no new Pod."""
_VARIANTS = ("distroless", "debug")


class InjectionError(ValueError):
    """The reason why a Pod cannot have a sidecar, for its owner."""


@attrs.frozen(kw_only=True)
class InjectionMesh:
    """The properties of the mesh that a sidecar depends on."""

    mesh: Mapping[str, Any]
    """The MeshConfig in its JSON form, with its defaults."""
    proxy_config: Mapping[str, Any]
    """The ProxyConfig that is in force for the Pod, in its JSON form, without Istio's defaults."""


@attrs.frozen
class Injected:
    """The Pod as it is to be; the one that came in where nothing is injected."""

    pod: Pod
    is_injected: bool
    reason: str
    """Why it is injected, or not, for people."""
    warnings: tuple[str, ...] = ()


@attrs.frozen
class Injector:
    """Injects by settings and their compiled templates."""

    settings: InjectionSettings
    templates: InjectionTemplates

    @classmethod
    def of(cls, settings: InjectionSettings) -> Injector:
        """Raises InjectionTemplateError."""
        templates = InjectionTemplates(settings.templates)
        for name in settings.default_templates:
            if name not in [*templates, *settings.aliases]:
                raise InjectionTemplateError(f"defaultTemplates: there is no template {name!r}")
        return cls(settings, templates)

    def inject(
        self,
        pod: Pod,
        namespace: str,
        mesh: InjectionMesh,
        *,
        workload: PodOwner | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Injected:
        """The Pod with its sidecar. ``workload``: its owner; None: by the Pod. ``variables``: of the sidecar, by the
        path of the webhook.

        Raises InjectionError.
        """
        decision = decide(pod, namespace, self.settings.rules)
        warnings = [decision.warning] if decision.warning else []
        if not decision.injects:
            return Injected(pod, False, decision.reason, tuple(warnings))
        try:
            check_annotations(_annotations(pod))
            found = self._injected(pod, workload or workload_of(pod, namespace), mesh, dict(variables or {}))
        except (AnnotationError, ScrapingError, InjectionTemplateError) as error:
            raise InjectionError(str(error)) from None
        warnings += annotation_warnings(_annotations(pod))
        return Injected(found, True, decision.reason, tuple(warnings))

    def _injected(self, pod: Pod, workload: PodOwner, mesh: InjectionMesh, variables: dict[str, str]) -> Pod:
        status = _object(_annotations(pod).get(names.STATUS, ""))
        overrides = _object(_annotations(pod).get(names.OVERRIDES, ""))
        status_port = _agent_port(pod, mesh)
        bare = _with_overrides(_without_injected(pod, status, status_port), overrides)
        variables = self._places(bare, variables)
        context = self._context(bare, workload, mesh)
        # Laid over the Pod as it came, so that what is unchanged stays where it is.
        merged: Pod = pod
        made: Pod = {}
        for name in self._template_names(pod):
            part = self.templates.render(name, context)
            made = overlaid(made, part)
            if _names_of(made, "initContainers") >= {PROXY} and _container(merged, "containers", PROXY):
                merged = _moved_to_init(merged)
            merged = overlaid(merged, part)
        merged = _with_users_containers(merged, bare, made, status, overrides, context)
        merged = _with_variables(merged, variables)
        merged = self._with_scraping(merged, pod, mesh, status_port)
        merged = self._with_probes(merged, bare, pod, status_port)
        annotations = {
            **_annotations(merged),
            names.STATUS: _status_of(made, self.settings.revision),
            **self.settings.injected_annotations,
        }
        labels = dict(merged["metadata"].get("labels") or {})
        if network := variables.get("ISTIO_META_NETWORK"):
            labels[NETWORK_LABEL] = network
        merged = {**merged, "metadata": {**merged["metadata"], "labels": labels, "annotations": annotations}}
        return _ordered(merged, holds=bool(context["hold_application"]))

    def _template_names(self, pod: Pod) -> Iterator[str]:
        named = _annotations(pod).get(names.TEMPLATES)
        wanted = self.settings.default_templates if named is None else [name.strip() for name in named.split(",")]
        for name in wanted:
            yield from self.settings.aliases.get(name, (name,))

    def _places(self, pod: Pod, variables: dict[str, str]) -> dict[str, str]:
        """Cluster and network: the Pod's label, else the webhook's path, else the settings."""
        values = self.settings.values["global"]
        found = {
            "ISTIO_META_CLUSTER_ID": values["multiCluster"]["clusterName"],
            "ISTIO_META_NETWORK": values["network"],
            **variables,
        }
        if network := _labels(pod).get(NETWORK_LABEL):
            found["ISTIO_META_NETWORK"] = network
        return {name: value for name, value in found.items() if value or name in variables}

    def _context(self, pod: Pod, workload: PodOwner, mesh: InjectionMesh) -> dict[str, Any]:
        """The variables of templates; docs/kubernetes-injection.md lists them."""
        values, labels, annotations = self.settings.values, _labels(pod), _annotations(pod)
        proxy, config = values["global"]["proxy"], mesh.proxy_config
        mode = annotations.get(names.INTERCEPTION) or config.get("interceptionMode") or "REDIRECT"
        port = str(_agent_port(pod, mesh))
        excluded = annotations.get("traffic.sidecar.istio.io/excludeInboundPorts", proxy["excludeInboundPorts"])
        containers = [c for c in pod["spec"].get("containers") or () if c.get("name") != PROXY]
        native = is_true(annotations.get(names.NATIVE, ""), self.settings.native_sidecars)
        return {
            "annotation": lambda name, default: annotations.get(name, default),
            "annotations": annotations,
            "agent_log_level": agent_log_level(
                annotations.get(names.LOG_LEVEL, values["global"]["logging"].get("level", "info"))
            ),
            "agent_proxy_config": _for_agent(config, annotations, values),
            "canonical_name": _canonical_name(pod, workload),
            "canonical_revision": labels.get("service.istio.io/canonical-revision")
            or labels.get("app.kubernetes.io/version")
            or labels.get("version")
            or "latest",
            "containers": [container.get("name", "") for container in containers],
            "excluded_inbound_ports": _with_port(excluded, port),
            "has_readiness": port != "0",
            "hold_application": config.get("holdApplicationUntilProxyStarts")
            or proxy["holdApplicationUntilProxyStarts"],
            "init_image": self._image("proxy_init", "", annotations) if mode != "NONE" else "",
            "init_resources": values["global"]["proxy_init"]["resources"] or _resources(annotations, proxy),
            "interception_mode": mode,
            "labels": labels,
            "mesh": mesh.mesh,
            "native_sidecar": native,
            "namespace": workload.namespace,
            "pod": pod,
            "pod_ports": [port for container in containers for port in container.get("ports") or ()],
            "proxy_config": {"proxyMetadata": {}, **config},
            "proxy_gid": PROXY_USER,
            "proxy_image": self._image("proxy", (config.get("image") or {}).get("imageType", ""), annotations),
            "proxy_uid": PROXY_USER,
            "resources": _resources(annotations, proxy),
            "revision": self.settings.revision,
            "user_mounts": _user_volumes(annotations, names.USER_VOLUME_MOUNT),
            "user_volumes": _user_volumes(annotations, names.USER_VOLUME),
            "values": values,
            "virtual_interfaces": annotations.get("istio.io/reroute-virtual-interfaces")
            or annotations.get("traffic.sidecar.istio.io/kubevirtInterfaces", ""),
            "workload": workload,
            "workload_name": labels.get("service.istio.io/workload-name") or workload.name,
        }

    def _image(self, of: str, image_type: str, annotations: Mapping[str, str]) -> str:
        """The image of a container: the annotation's, else hub, name, tag and variant of the settings."""
        values = self.settings.values["global"]
        name = values[of]["image"] or values["proxy"]["image"]
        if "/" in (own := annotations.get("sidecar.istio.io/proxyImage", "")):
            return own
        if "/" in name or ":" in name:
            return str(name)
        if not name or not values["hub"]:
            raise InjectionError(
                "no image is set for the proxy: give --injection-image, or values.global of the settings"
            )
        variant = annotations.get("sidecar.istio.io/proxyImageType") or image_type or values["variant"]
        return f"{values['hub']}/{name}:{_tag(str(values['tag'] or 'latest'), str(variant))}"

    def _with_scraping(self, pod: Pod, original: Pod, mesh: InjectionMesh, status_port: int) -> Pod:
        annotations = _annotations(pod)
        if names.STATUS in _annotations(original) and (value := _variable(original, SCRAPING)) is not None:
            return _with_variables(pod, {SCRAPING: value})
        enabled = mesh.mesh.get("enablePrometheusMerge", True) is not False
        found = merged_scraping(annotations, status_port, enabled=enabled) if status_port else None
        if found is None:
            return pod
        pod = {**pod, "metadata": {**pod["metadata"], "annotations": found[0]}}
        return _with_variables(pod, {SCRAPING: found[1]})

    def _with_probes(self, pod: Pod, bare: Pod, original: Pod, port: int) -> Pod:
        default = bool(self.settings.values["sidecarInjectorWebhook"]["rewriteAppHTTPProbe"])
        annotations = _annotations(pod)
        if not port or not is_true(annotations.get(names.REWRITE_PROBES, ""), default) or _proxy_of(pod) is None:
            return pod
        before = _object(_variable(original, PROBERS) or "")
        if probers := {**app_probers(bare, port), **before}:
            pod = _with_variables(pod, {PROBERS: as_variable(probers)})
        return rewritten(pod, port)


def _without_injected(pod: Pod, status: Mapping[str, Any], status_port: int) -> Pod:
    """The Pod without the containers that were injected before."""
    spec = dict(pod.get("spec") or {})
    for name in ("initContainers", "containers"):
        injected = status.get(name) or ()
        if spec.get(name):
            spec[name] = [container for container in spec[name] if container.get("name") not in injected]
    annotations = {name: value for name, value in _annotations(pod).items() if name != names.STATUS}
    if status and annotations.get("prometheus.io/port") == str(status_port):
        annotations = {name: value for name, value in annotations.items() if not name.startswith("prometheus.io/")}
    metadata = {**(pod.get("metadata") or {}), "annotations": annotations}
    return {**pod, "metadata": metadata, "spec": spec}


def _with_overrides(pod: Pod, overrides: Mapping[str, Any]) -> Pod:
    """The Pod with the containers as the user wrote them."""
    spec = dict(pod["spec"])
    for name in ("initContainers", "containers"):
        there = _names_of(pod, name)
        more = [container for container in overrides.get(name) or () if container.get("name") not in there]
        if more:
            spec[name] = [*(spec.get(name) or ()), *more]
    return {**pod, "spec": spec}


def _moved_to_init(pod: Pod) -> Pod:
    """The Pod with what the user says of the proxy among the init containers, where a native sidecar is."""
    spec = dict(pod["spec"])
    moved = [container for container in spec["containers"] if container.get("name") == PROXY]
    spec["containers"] = [container for container in spec["containers"] if container.get("name") != PROXY]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), *moved]
    return {**pod, "spec": spec}


def _with_users_containers(
    pod: Pod,
    bare: Pod,
    made: Pod,
    status: Mapping[str, Any],
    existing: Mapping[str, Any],
    context: Mapping[str, Any],
) -> Pod:
    """The Pod with what the user wrote about injected containers laid over them, and noted for the next time."""
    overrides: dict[str, list[Any]] = {}
    spec = dict(pod["spec"])
    for name in ("containers", "initContainers"):
        for container in _names_of(made, name):
            own = _container(existing, name, container, top=True) or (
                _container(bare, name, container)
                or (name == "initContainers" and _container(bare, "containers", container))
            )
            if not own or (status and not existing):
                continue
            over = {key: value for key, value in own.items() if key != "image" or value != AUTO}
            # Noted as it is laid over, so that the next time is as the first.
            overrides.setdefault(name, []).append(over)
            spec[name] = [overlaid(one, over) if one.get("name") == container else one for one in spec[name]]
    pod = {**pod, "spec": spec}
    if overrides and not status:
        annotations = {**_annotations(pod), names.OVERRIDES: json.dumps(overrides, separators=(",", ":"))}
        pod = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
    return _with_proxys_user(pod, overrides, context)


def _with_proxys_user(pod: Pod, overrides: Mapping[str, list[Any]], context: Mapping[str, Any]) -> Pod:
    """The Pod whose rules let through the user that the proxy runs as, if the user of the mesh chose another."""
    own = next((c for containers in overrides.values() for c in containers if c.get("name") == PROXY), None)
    user = ((own or {}).get("securityContext") or {}).get("runAsUser")
    if user is None:
        return pod
    spec = dict(pod["spec"])
    if context["interception_mode"] == "TPROXY":  # it needs the rights of root
        for name in ("containers", "initContainers"):
            spec[name] = [
                {**one, "securityContext": {**one["securityContext"], "runAsUser": 0}}
                if one.get("name") == PROXY
                else one
                for one in spec.get(name) or ()
            ]
    if user != 0:
        spec["initContainers"] = [
            {**one, "args": _replaced_after(one["args"], "-u", str(user))}
            if one.get("name") == INIT and "-u" in (one.get("args") or ())
            else one
            for one in spec.get("initContainers") or ()
        ]
    return {**pod, "spec": {name: value for name, value in spec.items() if value != [] or name in pod["spec"]}}


def _replaced_after(arguments: list[str], flag: str, value: str) -> list[str]:
    index = arguments.index(flag) + 1
    return [*arguments[:index], value, *arguments[index + 1 :]]


def _with_variables(pod: Pod, variables: Mapping[str, str]) -> Pod:
    """The Pod with variables of the proxy's container, at the end of the others."""
    if not variables:
        return pod
    spec = dict(pod["spec"])
    more = [{"name": name, "value": value} for name, value in sorted(variables.items())]
    for name in ("containers", "initContainers"):
        if spec.get(name):
            spec[name] = [
                {**one, "env": [*(v for v in one.get("env") or () if v.get("name") not in variables), *more]}
                if one.get("name") == PROXY
                else one
                for one in spec[name]
            ]
    return {**pod, "spec": spec}


def _ordered(pod: Pod, *, holds: bool) -> Pod:
    """The Pod with its containers in the order of their start, as Istio has it.

    A native sidecar runs before the Pod's own init containers; else the rules are last, so that these reach anything.
    """
    spec = dict(pod["spec"])
    if containers := spec.get("containers"):
        spec["containers"] = _moved(containers, PROXY, first=holds)
    if containers := spec.get("initContainers"):
        native = PROXY in _names_of(pod, "initContainers")
        if native:
            containers = _moved(containers, PROXY, first=True)
        spec["initContainers"] = _moved(containers, INIT, first=native)
    return {**pod, "spec": spec}


def _moved(containers: list[Any], name: str, *, first: bool) -> list[Any]:
    own = [container for container in containers if container.get("name") == name]
    others = [container for container in containers if container.get("name") != name]
    return [*own, *others] if first else [*others, *own]


def _status_of(made: Pod, revision: str) -> str:
    """The annotation that says what was injected, in Istio's form."""
    spec = made.get("spec") or {}
    found: dict[str, Any] = {name: [each["name"] for each in spec.get(name) or ()] or None for name in _LISTS}
    return json.dumps({**found, "revision": revision or "default"}, separators=(",", ":"))


def _for_agent(config: Mapping[str, Any], annotations: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The ProxyConfig that the agent gets at its start."""
    found = {name: config[name] for name in _OF_MACHINE if config.get(name) not in (None, "")}
    namespace, revision = values["global"]["istioNamespace"], values.get("revision", "")
    host = f"istiod-{revision}" if revision and revision != "default" else "istiod"
    found.setdefault("discoveryAddress", f"{host}.{namespace}.svc:15012")
    if address := annotations.get("sidecar.istio.io/discoveryAddress"):
        found["discoveryAddress"] = address
    return found


def _canonical_name(pod: Pod, workload: PodOwner) -> str:
    labels = _labels(pod)
    named = ("service.istio.io/canonical-name", "app.kubernetes.io/name", "app")
    own = workload.name or (pod.get("metadata") or {}).get("generateName") or ""
    return next((labels[label] for label in named if labels.get(label)), own)[:63].strip("-_.")


def _resources(annotations: Mapping[str, str], proxy: Mapping[str, Any]) -> dict[str, Any]:
    """Requests and limits of the proxy: the annotations' if there is one of them, else those of the settings."""
    found: dict[str, dict[str, str]] = {}
    for name, kind, resource in (
        ("proxyCPU", "requests", "cpu"),
        ("proxyMemory", "requests", "memory"),
        ("proxyCPULimit", "limits", "cpu"),
        ("proxyMemoryLimit", "limits", "memory"),
    ):
        if (value := annotations.get(f"sidecar.istio.io/{name}")) is not None:
            found.setdefault(kind, {})[resource] = value
    return found or {name: value for name, value in (proxy.get("resources") or {}).items() if value}


def _user_volumes(annotations: Mapping[str, str], name: str) -> list[dict[str, Any]]:
    return volumes_of(annotations[name]) if name in annotations else []


def _with_port(excluded: str, port: str) -> str:
    """Ports that are not led through the proxy, with the agent's."""
    ports = [part.strip() for part in str(excluded).split(",") if part.strip()]
    return ",".join([*ports, *([port] if port != "0" and port not in ports else [])])


def _tag(tag: str, variant: str) -> str:
    if not variant:
        return tag
    for known in _VARIANTS:
        tag = tag.removesuffix(f"-{known}")
    return tag if variant == "default" else f"{tag}-{variant}"


def _agent_port(pod: Pod, mesh: InjectionMesh) -> int:
    """The agent's port for probes and metrics; 0: none."""
    own = _annotations(pod).get(names.STATUS_PORT)
    return int(own if own is not None else mesh.proxy_config.get("statusPort") or default_proxy().status_port)


def _annotations(pod: Pod) -> dict[str, str]:
    return (pod.get("metadata") or {}).get("annotations") or {}


def _labels(pod: Pod) -> dict[str, str]:
    return (pod.get("metadata") or {}).get("labels") or {}


def _names_of(pod: Pod, name: str) -> set[str]:
    return {container.get("name", "") for container in (pod.get("spec") or {}).get(name) or ()}


def _container(pod: Mapping[str, Any], name: str, container: str, *, top: bool = False) -> Mapping[str, Any] | None:
    of: Iterable[Mapping[str, Any]] = (pod if top else pod.get("spec") or {}).get(name) or ()
    return next((each for each in of if each.get("name") == container), None)


def _proxy_of(pod: Pod) -> Mapping[str, Any] | None:
    return _container(pod, "containers", PROXY) or _container(pod, "initContainers", PROXY)


def _variable(pod: Pod, name: str) -> str | None:
    """The value of a variable of the proxy's container."""
    variables = (_proxy_of(pod) or {}).get("env") or ()
    return next((variable.get("value") for variable in variables if variable.get("name") == name), None)


def _object(text: str) -> dict[str, Any]:
    """An object as JSON in an annotation; nothing where it is none."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
