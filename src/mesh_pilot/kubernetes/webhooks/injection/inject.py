"""The injection of a sidecar into a Pod, from its settings to the Pod that comes out of it.

Injecting twice is as injecting once: what was injected before is taken out first, by the annotation
``sidecar.istio.io/status``, and what the user wrote about the container ``istio-proxy`` is kept in the annotation
``proxy.istio.io/overrides``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from mesh_pilot.base.reading import as_object
from mesh_pilot.kubernetes.webhooks.injection import annotations as names
from mesh_pilot.kubernetes.webhooks.injection.annotations import (
    AnnotationError,
    annotation_warnings,
    check_annotations,
)
from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettings
from mesh_pilot.kubernetes.webhooks.injection.context import (
    InjectionTemplateError,
    InjectionTemplates,
    template_context,
)
from mesh_pilot.kubernetes.webhooks.injection.decision import decide
from mesh_pilot.kubernetes.webhooks.injection.merge import Pod, overlaid
from mesh_pilot.kubernetes.webhooks.injection.pod_parts import (
    InjectionError,
    InjectionMesh,
    agent_port,
    annotations_of,
    container_of,
    labels_of,
    names_of,
    proxy_of,
    variable_of,
    with_variables,
)
from mesh_pilot.kubernetes.webhooks.injection.probes import PROXY, app_probers, as_variable, rewritten
from mesh_pilot.kubernetes.webhooks.injection.probes import VARIABLE as PROBERS
from mesh_pilot.kubernetes.webhooks.injection.scraping import VARIABLE as SCRAPING
from mesh_pilot.kubernetes.webhooks.injection.scraping import ScrapingError, is_true, merged_scraping
from mesh_pilot.kubernetes.webhooks.injection.users_containers import (
    INIT,
    moved_to_init,
    with_overrides,
    with_users_containers,
    without_injected,
)
from mesh_pilot.kubernetes.webhooks.injection.workload import PodOwner, workload_of

__all__ = ["Injected", "InjectionError", "InjectionMesh", "Injector"]

NETWORK_LABEL = "topology.istio.io/network"

_LISTS = ("initContainers", "containers", "volumes", "imagePullSecrets")


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
        for alias, aliased in settings.aliases.items():
            if unknown := next((name for name in aliased if name not in [*templates]), None):
                raise InjectionTemplateError(f"aliases.{alias}: there is no template {unknown!r}")
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
            check_annotations(annotations_of(pod))
            found = self._injected(pod, workload or workload_of(pod, namespace), mesh, dict(variables or {}))
        except (AnnotationError, ScrapingError, InjectionTemplateError) as error:
            raise InjectionError(str(error)) from None
        warnings += annotation_warnings(annotations_of(pod))
        return Injected(found, True, decision.reason, tuple(warnings))

    def _injected(self, pod: Pod, workload: PodOwner, mesh: InjectionMesh, variables: dict[str, str]) -> Pod:
        status = _object(annotations_of(pod).get(names.STATUS, ""))
        overrides = _object(annotations_of(pod).get(names.OVERRIDES, ""))
        status_port = agent_port(pod, mesh)
        bare = with_overrides(without_injected(pod, status, status_port), overrides)
        variables = self._places(bare, variables)
        context = template_context(self.settings, bare, workload, mesh)
        # Laid over the Pod as it came, so that what is unchanged stays where it is.
        merged: Pod = pod
        made: Pod = {}
        for name in self._template_names(pod):
            part = self.templates.render(name, context)
            made = overlaid(made, part)
            if names_of(made, "initContainers") >= {PROXY} and container_of(merged, "containers", PROXY):
                merged = moved_to_init(merged)
            merged = overlaid(merged, part)
        merged = with_users_containers(merged, bare, made, status, overrides, context)
        merged = with_variables(merged, variables)
        merged = self._with_scraping(merged, pod, mesh, status_port)
        merged = self._with_probes(merged, bare, pod, status_port)
        annotations = {
            **annotations_of(merged),
            names.STATUS: _status_of(made, self.settings.revision),
            **self.settings.injected_annotations,
        }
        labels = dict(merged["metadata"].get("labels") or {})
        if network := variables.get("ISTIO_META_NETWORK"):
            labels[NETWORK_LABEL] = network
        merged = {**merged, "metadata": {**merged["metadata"], "labels": labels, "annotations": annotations}}
        return _ordered(merged, holds=bool(context["hold_application"]))

    def _template_names(self, pod: Pod) -> Iterator[str]:
        named = annotations_of(pod).get(names.TEMPLATES)
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
        if network := labels_of(pod).get(NETWORK_LABEL):
            found["ISTIO_META_NETWORK"] = network
        return {name: value for name, value in found.items() if value or name in variables}

    def _with_scraping(self, pod: Pod, original: Pod, mesh: InjectionMesh, status_port: int) -> Pod:
        annotations = annotations_of(pod)
        if names.STATUS in annotations_of(original) and (value := variable_of(original, SCRAPING)) is not None:
            return with_variables(pod, {SCRAPING: value})
        enabled = mesh.mesh.get("enablePrometheusMerge", True) is not False
        found = merged_scraping(annotations, status_port, enabled=enabled) if status_port else None
        if found is None:
            return pod
        pod = {**pod, "metadata": {**pod["metadata"], "annotations": found[0]}}
        return with_variables(pod, {SCRAPING: found[1]})

    def _with_probes(self, pod: Pod, bare: Pod, original: Pod, port: int) -> Pod:
        default = bool(self.settings.values["sidecarInjectorWebhook"]["rewriteAppHTTPProbe"])
        annotations = annotations_of(pod)
        if not port or not is_true(annotations.get(names.REWRITE_PROBES, ""), default) or proxy_of(pod) is None:
            return pod
        before = _object(variable_of(original, PROBERS) or "")
        if probers := {**app_probers(bare, port), **before}:
            pod = with_variables(pod, {PROBERS: as_variable(probers)})
        return rewritten(pod, port)


def _ordered(pod: Pod, *, holds: bool) -> Pod:
    """The Pod with its containers in the order of their start, as Istio has it.

    A native sidecar runs before the Pod's own init containers; else the rules are last, so that these reach anything.
    """
    spec = dict(pod["spec"])
    if containers := spec.get("containers"):
        spec["containers"] = _moved(containers, PROXY, first=holds)
    if containers := spec.get("initContainers"):
        native = PROXY in names_of(pod, "initContainers")
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


def _object(text: str) -> dict[str, Any]:
    """An object as JSON in an annotation; empty where there is no object."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return dict(as_object(found))


# -- the JSON patch (RFC 6902) that makes one JSON value of another


Operation = dict[str, Any]


def difference(before: Any, after: Any, path: str = "") -> Iterator[Operation]:
    """The operations, in order. Nothing where both are equal."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key, old in before.items():
            if key not in after:
                yield {"op": "remove", "path": f"{path}/{escaped(key)}"}
            else:
                yield from difference(old, after[key], f"{path}/{escaped(key)}")
        for key, new in after.items():
            if key not in before:
                yield {"op": "add", "path": f"{path}/{escaped(key)}", "value": new}
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield {"op": "replace", "path": path, "value": after}


def escaped(key: str) -> str:
    """A key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _of_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Operation]:
    """Entries that have the same name are compared; where their order changes, the list is replaced."""
    names_before, names_after = list(map(_name, before)), list(map(_name, after))
    if names_before == names_after:
        start = 0
    elif names_before and names_after[-len(names_before) :] == names_before:
        start = len(after) - len(before)  # what is new comes first
    elif names_after[: len(names_before)] == names_before:
        start = 0
    else:
        yield {"op": "replace", "path": path, "value": after}
        return
    for index, old in enumerate(before):
        yield from difference(old, after[start + index], f"{path}/{index}")
    for index, new in enumerate(after[:start]):
        yield {"op": "add", "path": f"{path}/{index}", "value": new}
    for new in after[start + len(before) :]:
        yield {"op": "add", "path": f"{path}/-", "value": new}


def _name(entry: Any) -> object:
    """The identity of an entry of a list: its name, or its whole value."""
    if isinstance(entry, Mapping):
        return ("name", entry["name"]) if isinstance(entry.get("name"), str) else sorted(map(repr, entry.items()))
    return ("value", repr(entry))
