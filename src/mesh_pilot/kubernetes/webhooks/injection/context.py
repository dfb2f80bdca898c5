"""The variables of templates: all that a sidecar depends on, of the Pod, the mesh and the settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from mesh_pilot.kubernetes.webhooks.injection import annotations as names
from mesh_pilot.kubernetes.webhooks.injection.annotations import agent_log_level, read_yaml, volumes_of
from mesh_pilot.kubernetes.webhooks.injection.configuration import GATEWAY, SIDECAR, InjectionSettings
from mesh_pilot.kubernetes.webhooks.injection.merge import Pod
from mesh_pilot.kubernetes.webhooks.injection.pod_parts import (
    InjectionError,
    InjectionMesh,
    agent_port,
    annotations_of,
    labels_of,
)
from mesh_pilot.kubernetes.webhooks.injection.probes import PROXY
from mesh_pilot.kubernetes.webhooks.injection.scraping import is_true
from mesh_pilot.kubernetes.webhooks.injection.workload import PodOwner

PROXY_USER = 1337

_OF_MACHINE = ("binaryPath", "controlPlaneAuthPolicy", "customConfigFile", "discoveryAddress", "proxyAdminPort",
               "statusPort")  # fmt: skip
"""Fields of a ProxyConfig that count only if the agent's own machine says them. All others come from the control plane
while the Pod runs, where a change needs no new Pod."""
_VARIANTS = ("distroless", "debug")


def template_context(settings: InjectionSettings, pod: Pod, workload: PodOwner, mesh: InjectionMesh) -> dict[str, Any]:
    """The variables of templates; docs/kubernetes-config.md lists them."""
    values, labels, annotations = settings.values, labels_of(pod), annotations_of(pod)
    proxy, config = values["global"]["proxy"], mesh.proxy_config
    mode = annotations.get(names.INTERCEPTION) or config.get("interceptionMode") or "REDIRECT"
    port = str(agent_port(pod, mesh))
    excluded = annotations.get("traffic.sidecar.istio.io/excludeInboundPorts", proxy["excludeInboundPorts"])
    containers = [c for c in pod["spec"].get("containers") or () if c.get("name") != PROXY]
    native = is_true(annotations.get(names.NATIVE, ""), settings.native_sidecars)
    # One flat table, not a function for each: docs/kubernetes-config.md lists the variables in the same form.
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
        "hold_application": config.get("holdApplicationUntilProxyStarts") or proxy["holdApplicationUntilProxyStarts"],
        "init_image": _image(settings, "proxy_init", "", annotations) if mode != "NONE" else "",
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
        "proxy_image": _image(settings, "proxy", (config.get("image") or {}).get("imageType", ""), annotations),
        "proxy_uid": PROXY_USER,
        "resources": _resources(annotations, proxy),
        "revision": settings.revision,
        "user_mounts": _user_volumes(annotations, names.USER_VOLUME_MOUNT),
        "user_volumes": _user_volumes(annotations, names.USER_VOLUME),
        "values": values,
        "virtual_interfaces": annotations.get("istio.io/reroute-virtual-interfaces")
        or annotations.get("traffic.sidecar.istio.io/kubevirtInterfaces", ""),
        "workload": workload,
        "workload_name": labels.get("service.istio.io/workload-name") or workload.name,
    }


def _image(settings: InjectionSettings, of: str, image_type: str, annotations: Mapping[str, str]) -> str:
    """The image of a container: the annotation's, else hub, name, tag and variant of the settings."""
    values = settings.values["global"]
    name = values[of]["image"] or values["proxy"]["image"]
    if "/" in (own := annotations.get("sidecar.istio.io/proxyImage", "")):
        return own
    if "/" in name or ":" in name:
        return str(name)
    if not name or not values["hub"]:
        raise InjectionError("no image is set for the proxy: give --injection-image, or values.global of the settings")
    variant = annotations.get("sidecar.istio.io/proxyImageType") or image_type or values["variant"]
    return f"{values['hub']}/{name}:{_tag(str(values['tag'] or 'latest'), str(variant))}"


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
    labels = labels_of(pod)
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


# -- templates of what is injected: Jinja2, whose result is the YAML of a part of a Pod


MAX_RENDERED = 1 << 20
"""Characters of what a template makes; a Pod has no more."""


class InjectionTemplateError(ValueError):
    """A template that cannot be used: its name, its line where it is known, and the reason."""


class InjectionTemplates:
    """Compiled templates by name: ours, and those of the settings."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Raises InjectionTemplateError for a string that is not a template."""
        folder = files(__package__).joinpath("templates")
        ours = {name: folder.joinpath(f"{name}.yaml").read_text("utf-8") for name in (SIDECAR, GATEWAY, "parts")}
        environment = SandboxedEnvironment(loader=DictLoader({**ours, **texts}), undefined=StrictUndefined)
        environment.filters["json"] = _json
        self._templates: dict[str, Template] = {}
        for name in (SIDECAR, GATEWAY, *texts):
            try:
                self._templates[name] = environment.get_template(name)
            except TemplateError as error:
                raise InjectionTemplateError(f"template {name}{_line(error)}: {error}") from None
            except (RecursionError, MemoryError, SyntaxError) as error:  # of Python, which compiles what Jinja2 makes
                raise InjectionTemplateError(f"template {name}: nested too deeply: {type(error).__name__}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._templates)

    def render(self, name: str, context: Mapping[str, Any]) -> Pod:
        """The part of a Pod that a template makes. Raises InjectionTemplateError."""
        if name not in self._templates:
            raise InjectionTemplateError(f"there is no template {name!r}; known: {', '.join(sorted(self._templates))}")
        text = ""
        try:
            for piece in self._templates[name].generate(context):
                text += piece
                if len(text) > MAX_RENDERED:
                    raise InjectionTemplateError(f"template {name} makes more than {MAX_RENDERED} characters")
        except InjectionTemplateError:
            raise
        except Exception as error:  # a template is a program: it fails with whatever it likes
            raise InjectionTemplateError(f"template {name}{_line(error)}: {error or type(error).__name__}") from None
        try:
            return read_yaml(text, f"template {name} makes no object with the parts of a Pod")
        except ValueError as error:
            raise InjectionTemplateError(str(error)) from None


def _line(error: BaseException) -> str:
    """The line in a template where an exception was raised, for people."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while line is None and trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""


def _json(value: object) -> str:
    """The value as JSON, which is YAML as well."""
    return json.dumps(value, sort_keys=True)
