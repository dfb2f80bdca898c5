"""The settings of injection, in the form of Istio's ``istio-sidecar-injector`` ConfigMap, as one YAML file.

Templates are Jinja2 in place of Go's: nothing runs those in Python. ``values`` has the names of Istio's Helm chart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mesh_pilot.kubernetes.webhooks.injection.annotations import read_yaml
from mesh_pilot.kubernetes.webhooks.injection.decision import InjectionPolicy, InjectionRules, read_selector

MAX_BYTES = 1 << 20
"""The largest size of the file; a ConfigMap holds no more."""

SIDECAR, GATEWAY = "sidecar", "gateway"
"""The names of the built-in templates."""


class InjectionSettingsError(ValueError):
    """A mistake in the settings of injection: the field and the reason."""


@attrs.frozen(kw_only=True)
class InjectionSettings:
    """All that decides how a sidecar looks, besides the Pod and the mesh."""

    rules: InjectionRules = attrs.field(factory=InjectionRules)
    default_templates: tuple[str, ...] = (SIDECAR,)
    """The templates for Pods that name none."""
    templates: Mapping[str, str] = attrs.field(factory=dict)
    """Texts by name. They come before our own of the same name."""
    aliases: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    """Names that stand for several templates."""
    injected_annotations: Mapping[str, str] = attrs.field(factory=dict)
    native_sidecars: bool = True
    """True if the proxy is an init container that continues running (Kubernetes 1.29 and later)."""
    revision: str = ""
    values: Mapping[str, Any] = attrs.field(factory=lambda: DEFAULT_VALUES)


DEFAULT_VALUES: Mapping[str, Any] = {
    "global": {
        "hub": "",
        "tag": "",
        "variant": "",
        "imagePullPolicy": "",
        "imagePullSecrets": [],
        "istioNamespace": "istio-system",
        "logAsJson": False,
        "logging": {"level": "info"},
        "meshID": "",
        "multiCluster": {"clusterName": ""},
        "network": "",
        "trustBundleName": "istio-ca-root-cert",
        "sds": {"token": {"aud": "istio-ca"}},
        "proxy": {
            "image": "",
            "capNetBindService": False,
            "clusterDomain": "cluster.local",
            "componentLogLevel": "misc:error",
            "excludeIPRanges": "",
            "excludeInboundPorts": "",
            "excludeOutboundPorts": "",
            "holdApplicationUntilProxyStarts": False,
            "includeIPRanges": "*",
            "includeInboundPorts": "*",
            "includeOutboundPorts": "",
            "lifecycle": {},
            "logLevel": "warning",
            "privileged": False,
            "readinessFailureThreshold": 4,
            "readinessInitialDelaySeconds": 0,
            "readinessPeriodSeconds": 15,
            "resources": {
                "requests": {"cpu": "100m", "memory": "128Mi"},
                "limits": {"cpu": "2000m", "memory": "1024Mi"},
            },
            "seccompProfile": {},
            "startupProbe": {"enabled": True, "failureThreshold": 600},
        },
        "proxy_init": {"image": "", "resources": {}},
    },
    "sidecarInjectorWebhook": {"rewriteAppHTTPProbe": True},
}
"""The values where the file has no others. ``null`` takes a resource away."""

_FIELDS = (
    "policy", "defaultTemplates", "templates", "aliases", "injectedAnnotations", "neverInjectSelector",
    "alwaysInjectSelector", "nativeSidecars", "values",
)  # fmt: skip


def read_settings(text: bytes, base: InjectionSettings) -> InjectionSettings:
    """The settings of a file over ``base``. Raises InjectionSettingsError."""
    if len(text) > MAX_BYTES:
        raise InjectionSettingsError(f"has more than {MAX_BYTES} bytes")
    try:
        fields = read_yaml(text.decode(), "is not an object with settings")
    except ValueError as error:
        raise InjectionSettingsError(str(error)) from None
    if not fields:
        return base
    if unknown := next((name for name in fields if name not in _FIELDS), None):
        raise InjectionSettingsError(f"{unknown}: there is no such field; known: {', '.join(_FIELDS)}")
    given: dict[str, Any] = {"rules": _rules(fields, base.rules)}
    if fields.get("defaultTemplates"):
        given["default_templates"] = _names(fields["defaultTemplates"], "defaultTemplates")
    given["templates"] = {**base.templates, **_texts(fields.get("templates"), "templates")}
    aliases = _object(fields.get("aliases"), "aliases")
    given["aliases"] = {name: _names(names, f"aliases.{name}") for name, names in aliases.items()}
    given["injected_annotations"] = _texts(fields.get("injectedAnnotations"), "injectedAnnotations")
    if (native := fields.get("nativeSidecars")) is not None:
        if not isinstance(native, bool):
            raise InjectionSettingsError("nativeSidecars: expected true or false")
        given["native_sidecars"] = native
    given["values"] = merged_values(base.values, _object(fields.get("values"), "values"), "values")
    return attrs.evolve(base, **given)


def merged_values(base: Mapping[str, Any], over: Mapping[str, Any], path: str) -> dict[str, Any]:
    """``over`` laid over ``base``; objects are merged. Raises InjectionSettingsError where an object is expected."""
    found = dict(base)
    for name, value in over.items():
        below = base.get(name)
        if value is None:
            if name in DEFAULT_VALUES["global"]["proxy"]["resources"]:
                found.pop(name, None)
        elif isinstance(below, Mapping) and isinstance(value, Mapping):
            found[name] = merged_values(below, value, f"{path}.{name}")
        else:
            found[name] = _in_place_of(below, value, f"{path}.{name}")
    return found


def _in_place_of(below: Any, value: Any, path: str) -> Any:
    """A value in place of another: of the same type, any where there was none. Raises InjectionSettingsError."""
    wanted = ""
    match below:
        case Mapping():
            wanted = "an object"
        case list():
            wanted = "" if isinstance(value, list) else "a list"
        case bool():
            wanted = "" if isinstance(value, bool) else "true or false"
        case int():
            wanted = "" if str(value).isdecimal() else "a whole number"
        case str():
            wanted = "a string" if isinstance(value, bool | list | Mapping) else ""
            value = str(value)
    if wanted:
        raise InjectionSettingsError(f"{path}: expected {wanted}")
    return value


def _rules(fields: Mapping[str, Any], base: InjectionRules) -> InjectionRules:
    policy = base.policy
    if (said := fields.get("policy")) is not None:
        try:
            policy = InjectionPolicy(said)
        except ValueError:
            raise InjectionSettingsError(f"policy: {said!r} is neither enabled nor disabled") from None
    found = {}
    for name in ("neverInjectSelector", "alwaysInjectSelector"):
        selectors = fields.get(name) or []
        if not isinstance(selectors, list):
            raise InjectionSettingsError(f"{name}: expected a list of label selectors")
        try:
            found[name] = tuple(read_selector(each, f"{name}[{index}]") for index, each in enumerate(selectors))
        except ValueError as error:
            raise InjectionSettingsError(str(error)) from None
    return InjectionRules(policy, found["neverInjectSelector"], found["alwaysInjectSelector"])


def _object(data: object, path: str) -> dict[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InjectionSettingsError(f"{path}: expected an object")
    return {str(name): value for name, value in data.items()}


def _texts(data: object, path: str) -> dict[str, str]:
    found = _object(data, path)
    if wrong := next((name for name, value in found.items() if not isinstance(value, str)), None):
        raise InjectionSettingsError(f"{path}.{wrong}: expected a string")
    return found


def _names(data: object, path: str) -> tuple[str, ...]:
    if not isinstance(data, list) or not data or not all(isinstance(name, str) for name in data):
        raise InjectionSettingsError(f"{path}: expected a list of names of templates")
    return tuple(data)
