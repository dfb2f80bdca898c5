"""WasmPlugins and TrafficExtensions at a real Envoy, with a real module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fleet import fleet
from tests.support.wasm_modules import marking
from tests.traffic.test_envoy_filters import CLIENT, SERVICE, answers

pytestmark = pytest.mark.envoy

PLUGIN = """
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: mark, namespace: shop}}
spec:
  url: {url}
  pluginConfig: {{mark: {mark}}}
  failStrategy: {strategy}
  match: [{{mode: CLIENT}}]
"""
SCRIPT = """
apiVersion: extensions.istio.io/v1alpha1
kind: TrafficExtension
metadata: {name: script, namespace: shop}
spec:
  lua: {inlineCode: 'function envoy_on_response(h) h:headers():add("x-lua", "yes") end'}
"""


async def test_a_module_runs_and_a_missing_one_holds_nothing_up(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    module = tmp_path / "mark.wasm"
    module.write_bytes(marking("x-mark"))

    def plugin(mark: str, path: Path = module, strategy: str = "FAIL_CLOSE") -> str:
        return PLUGIN.format(url=f"file://{path}", mark=mark, strategy=strategy)

    async with fleet(tmp_path) as mesh:
        backend = await mesh.backend("api")
        await mesh.apply(SERVICE.format(port=port, backend=backend) + "---" + plugin("one") + "---" + SCRIPT)
        await mesh.envoy(CLIENT)
        await answers(mesh, url, 200, x_mark='{"mark":"one"}', x_lua="yes")
        await mesh.assert_all_taken()
