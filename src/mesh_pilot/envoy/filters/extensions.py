"""Filters of extensions (WasmPlugins and TrafficExtensions), and their settings, which proxies fetch by ECDS.

A module goes into the settings as bytes (decision 025). Where there is none to run, the settings are those of an RBAC
filter that lets all pass or nothing, as Istio's agent does it. Istio's agents fetch modules themselves: they are told
where from, but for those that need a pull secret, which stays here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envoy.config.core.v3 import base_pb2, config_source_pb2, extension_pb2, http_uri_pb2
from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.config.rbac.v3.rbac_pb2 import RBAC
from envoy.extensions.filters.http.lua.v3.lua_pb2 import Lua
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC as HttpRbac
from envoy.extensions.filters.http.wasm.v3.wasm_pb2 import Wasm as HttpWasm
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
from envoy.extensions.filters.network.rbac.v3.rbac_pb2 import RBAC as NetworkRbac
from envoy.extensions.filters.network.wasm.v3.wasm_pb2 import Wasm as NetworkWasm
from envoy.extensions.wasm.v3 import wasm_pb2
from google.protobuf import message, wrappers_pb2

from mesh_pilot.api.istio.extensions import v1alpha1 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import ads, any_of, resource_of, seconds
from mesh_pilot.istio.meaning.wasm import KINDS, fails_open, module_ref
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.mesh.policies.extensions import Extension, ExtensionPhase, Extensions, extension_of, wasm_in_force
from mesh_pilot.mesh.proxy.plans import Plan, ResourceQuery
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import WasmModule
from mesh_pilot.model.modules import FILE
from mesh_pilot.model.resource import PREFIX, Resource
from mesh_pilot.world.view import View

RUNTIME = "envoy.wasm.runtime.v8"

ALLOW_PREFIX = "wasm-default-allow"
DENY_PREFIX = "wasm-default-deny"
"""Prefixes of the statistics of filters that stand for a missing module; as of Istio's agent."""

_NO_CLUSTER = "_"
"""Where Istio's agent is told to fetch from, there is no cluster: it replaces the whole."""
_AGENT_SECONDS = 30
_PULL_POLICY = "ISTIO_META_WASM_IMAGE_PULL_POLICY"
_VERSION = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION"

_FAILURE_POLICIES = {
    api.FailStrategy.FAIL_OPEN: wasm_pb2.FAIL_OPEN,
    api.FailStrategy.FAIL_RELOAD: wasm_pb2.FAIL_RELOAD,
}


# -- filters


def http_extensions(extensions: Extensions, *phases: ExtensionPhase) -> list[HttpFilter]:
    """The filters for requests, phase by phase."""
    chosen = (each for phase in phases for each in extensions if each.phase is phase and not each.is_network)
    return [_http_filter(each) for each in chosen]


def network_extensions(extensions: Extensions, *phases: ExtensionPhase) -> list[Filter]:
    """The filters for connections, phase by phase."""
    chosen = (each for phase in phases for each in extensions if each.phase is phase and each.is_network)
    return [Filter(name=each.name, config_discovery=_fetched(NetworkWasm, NetworkRbac)) for each in chosen]


IN_ORDER = (ExtensionPhase.AUTHN, ExtensionPhase.AUTHZ, ExtensionPhase.STATS, ExtensionPhase.LAST)
"""All phases, as connections pass them."""


def _http_filter(extension: Extension) -> HttpFilter:
    if extension.script:
        script = Lua(default_source_code=base_pb2.DataSource(inline_string=extension.script))
        return HttpFilter(name=extension.name, typed_config=any_of(script))
    return HttpFilter(name=extension.name, config_discovery=_fetched(HttpWasm, HttpRbac))


def _fetched(*kinds: type[message.Message]) -> config_source_pb2.ExtensionConfigSource:
    """Settings of one of these types, which listeners wait for: they may be what secures traffic."""
    types = [PREFIX + kind.DESCRIPTOR.full_name for kind in kinds]
    return config_source_pb2.ExtensionConfigSource(config_source=ads(), type_urls=types)


# -- settings


@derived
def extension_configs(view: View, namespace: str, by_agent: bool) -> Plan:
    """The settings that proxies of a namespace may ask for; ``by_agent``: those with Istio's agent."""
    plan: dict[str, ResourceQuery] = {}
    for where in dict.fromkeys((view.root_namespace, namespace)):
        for config in (config for kind in KINDS for config in view.configs(kind, where)):
            extension = extension_of(view, config.key)
            if extension is not None and not extension.script:
                plan.setdefault(extension.name, extension_config.query(config.key, by_agent))
    return plan


@derived
def extension_config(view: View, key: ConfigKey, by_agent: bool) -> Resource | None:
    """The settings of an extension, with its module."""
    extension, in_force = extension_of(view, key), wasm_in_force(view, key)
    if extension is None or in_force is None:
        return None
    wasm, module = in_force.wasm, in_force.module
    config: message.Message
    if by_agent and not wasm.image_pull_secret:
        config = _wasm_filter(extension, _agent_config(extension, wasm))
    elif module.is_there:
        config = _wasm_filter(extension, _plugin_config(extension, wasm, _module_code(module)))
    else:
        config = stand_in(is_network=extension.is_network, passes=fails_open(wasm))
    settings = extension_pb2.TypedExtensionConfig(name=extension.name, typed_config=any_of(config))
    return resource_of(extension.name, settings, (key,))


def _wasm_filter(extension: Extension, config: wasm_pb2.PluginConfig) -> message.Message:
    found: message.Message = NetworkWasm(config=config) if extension.is_network else HttpWasm(config=config)
    return found


def stand_in(*, is_network: bool, passes: bool) -> message.Message:
    """The settings in place of a module: without rules all pass, with an empty list of rules none does."""
    prefix = ALLOW_PREFIX if passes else DENY_PREFIX
    rules = None if passes else RBAC()
    found: message.Message
    if is_network:
        found = NetworkRbac(rules=rules, stat_prefix=prefix)
    else:
        found = HttpRbac(rules=rules, rules_stat_prefix=prefix)
    return found


def _plugin_config(extension: Extension, wasm: api.WasmConfig, code: base_pb2.AsyncDataSource) -> wasm_pb2.PluginConfig:
    config = wasm_pb2.PluginConfig(
        name=f"{extension.key.namespace}.{extension.key.name}",
        root_id=wasm.plugin_name,
        vm_config=wasm_pb2.VmConfig(runtime=RUNTIME, code=code),
        failure_policy=_FAILURE_POLICIES.get(wasm.fail_strategy, wasm_pb2.UNSPECIFIED),
    )
    config.configuration.SetInParent()
    settings: dict[str, Any] = to_json(wasm)["pluginConfig"] if wasm.plugin_config is not None else {}
    if settings:
        text = json.dumps(settings, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
        config.configuration.CopyFrom(any_of(wrappers_pb2.StringValue(value=text)))
    variables: Iterable[api.EnvVar] = wasm.vm_config.env if wasm.vm_config is not None else ()
    environment = config.vm_config.environment_variables
    for variable in variables:
        if variable.value_from is api.EnvValueSource.HOST:
            environment.host_env_keys.append(variable.name)
        else:
            environment.key_values[variable.name] = variable.value
    return config


def _agent_config(extension: Extension, wasm: api.WasmConfig) -> wasm_pb2.PluginConfig:
    """The settings for Istio's agent: where the module is, and how to fetch it, as variables that it takes out."""
    ref = module_ref(wasm, extension.key.namespace)
    code = base_pb2.AsyncDataSource()
    if ref.url.startswith(FILE):
        code.local.filename = ref.url.removeprefix(FILE)
    else:
        uri = http_uri_pb2.HttpUri(uri=ref.url, cluster=_NO_CLUSTER, timeout=seconds(_AGENT_SECONDS))
        code.remote.CopyFrom(base_pb2.RemoteDataSource(http_uri=uri, sha256=wasm.sha256))
    config = _plugin_config(extension, wasm, code)
    variables = config.vm_config.environment_variables.key_values
    if wasm.image_pull_policy is not api.PullPolicy.UNSPECIFIED_POLICY:
        variables[_PULL_POLICY] = str(wasm.image_pull_policy.name)
    variables[_VERSION] = ""
    return config


def _module_code(module: WasmModule) -> base_pb2.AsyncDataSource:
    """The bytes of a module. Raises OSError or ValueError where its file is not there or not as it was."""
    if not module.path:  # a plan on another machine
        return base_pb2.AsyncDataSource(local=base_pb2.DataSource(inline_string=f"sha256:{module.sha256}"))
    body = Path(module.path).read_bytes()
    if hashlib.sha256(body).hexdigest() != module.sha256:
        raise ValueError(f"{module.path} is not the module that was kept there")
    return base_pb2.AsyncDataSource(local=base_pb2.DataSource(inline_bytes=body))
