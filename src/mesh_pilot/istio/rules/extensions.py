"""Rules for WasmPlugin and TrafficExtension."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from mesh_pilot.api.istio.extensions.v1alpha1 import EnvValueSource, TrafficExtension, VmConfig, WasmPlugin
from mesh_pilot.istio.rules.common import check_match_labels, check_targets
from mesh_pilot.istio.rules.context import Context, check, error
from mesh_pilot.istio.rules.names import port_reason
from mesh_pilot.model.config import Problem

SCHEMES = ("", "oci", "http", "https", "file")
MAX_ENVIRONMENT = 256
MAX_NAME = 256
MAX_VALUE = 2048

_NOT_IN_URL = re.compile(r"%(?![0-9A-Fa-f]{2})|[\x00-\x20\x7f]")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def validate_wasm_plugin(spec: WasmPlugin, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a WasmPlugin."""
    yield from check_match_labels(spec.selector)
    yield from check_targets(spec.selector is not None, spec.target_ref, spec.target_refs, context)
    yield from check("spec.url", url_reason(spec.url))
    if spec.sha256 and not _SHA256.fullmatch(spec.sha256):
        yield error("spec.sha256", "is not a SHA-256: 64 lower case hexadecimal digits")
    if len(spec.image_pull_secret) > 253:
        yield error("spec.imagePullSecret", "is longer than 253 characters")
    if len(spec.plugin_name) > MAX_NAME:
        yield error("spec.pluginName", f"is longer than {MAX_NAME} characters")
    if spec.vm_config is not None:
        yield from check_environment("spec.vmConfig.env", spec.vm_config)
    for index, selector in enumerate(spec.match):
        for number, port in enumerate(selector.ports):
            yield from check(f"spec.match[{index}].ports[{number}].number", port_reason(port.number))


def url_reason(url: str) -> str:
    """The fault in the URL of a module."""
    if not url:
        return "is missing"
    if _NOT_IN_URL.search(url):
        return f'"{url}" is not a URL: it has a space, a control character or a "%" without two hexadecimal digits'
    try:
        scheme = urlsplit(url).scheme if "://" in url else ""
    except ValueError:
        return f'"{url}" is not a URL'
    return "" if scheme in SCHEMES else f'"{scheme}" is not supported; oci, http, https or file'


def check_environment(path: str, config: VmConfig) -> Iterator[Problem]:
    """The variables of a WebAssembly machine."""
    if len(config.env) > MAX_ENVIRONMENT:
        yield error(path, f"has more than {MAX_ENVIRONMENT} variables")
    seen: set[str] = set()
    for index, variable in enumerate(config.env):
        here = f"{path}[{index}]"
        if not variable.name:
            yield error(f"{here}.name", "is missing")
        elif len(variable.name) > MAX_NAME:
            yield error(f"{here}.name", f"is longer than {MAX_NAME} characters")
        elif variable.name in seen:
            yield error(f"{here}.name", f'"{variable.name}" is given twice')
        seen.add(variable.name)
        if variable.value_from == EnvValueSource.HOST and variable.value:
            yield error(f"{here}.value", "excludes valueFrom HOST")
        if len(variable.value) > MAX_VALUE:
            yield error(f"{here}.value", f"is longer than {MAX_VALUE} characters")


MAX_CODE = 65536
"""Bytes of a script."""


def validate_traffic_extension(spec: TrafficExtension, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a TrafficExtension."""
    yield from check_match_labels(spec.selector)
    yield from check_targets(spec.selector is not None, None, spec.target_refs, context)
    if spec.wasm is not None:
        yield from check("spec.wasm.url", url_reason(spec.wasm.url))
        if spec.wasm.vm_config is not None:
            yield from check_environment("spec.wasm.vmConfig.env", spec.wasm.vm_config)
    elif spec.lua is None:
        yield error("spec", "needs wasm or lua")
    elif not spec.lua.inline_code:
        yield error("spec.lua.inlineCode", "is missing")
    elif len(spec.lua.inline_code.encode()) > MAX_CODE:
        yield error("spec.lua.inlineCode", f"has more than {MAX_CODE} bytes")
    else:
        yield from check("spec.lua.inlineCode", lua_reason(spec.lua.inline_code))
    for index, selector in enumerate(spec.match):
        for number, port in enumerate(selector.ports):
            yield from check(f"spec.match[{index}].ports[{number}].number", port_reason(port.number))


# -- rules for Lua scripts, as Envoy's LuaJIT reads them


_PLACE = re.compile(r'^\[string "[^"]*"\]:(\d+): ')


def lua_reason(script: str) -> str:
    """The reason why LuaJIT does not compile a script. It is compiled only, never run."""
    if script.startswith("\x1b"):
        return "is compiled Lua; Envoy is given the source"
    if "\0" in script:
        return "has a NUL character, at which Envoy would take it to end"
    runtime = _runtime()
    try:
        runtime.compile(script, name="script", mode="t")
    except (_syntax_error(), UnicodeEncodeError) as caught:
        return f"is not Lua: {_PLACE.sub(lambda found: f'line {found[1]}: ', str(caught), count=1)}"
    return ""


@cache
def _runtime() -> Any:
    return _lupa().LuaRuntime(register_eval=False, register_builtins=False)


def _syntax_error() -> type[Exception]:
    found: type[Exception] = _lupa().LuaSyntaxError
    return found


@cache
def _lupa() -> Any:
    """LuaJIT, or Lua 5.1, whose language it is, on machines for which there is no LuaJIT."""
    try:
        from lupa import luajit21

        return luajit21
    except ImportError:
        from lupa import lua51

        return lua51
