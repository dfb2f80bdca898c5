"""WasmPlugins and TrafficExtensions at a real Envoy, with a real module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mesh_pilot.model.resource import EXTENSION
from mesh_pilot.sources.wasm import source
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.wasm_modules import marking
from tests.traffic.test_envoy_filters import CLIENT, SERVICE, answers

pytestmark = pytest.mark.envoy

PLUGIN = """
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: {name}, namespace: shop}}
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


@pytest.mark.parametrize("delta", [False, True], ids=["SotW", "Delta"])
async def test_a_module_runs_and_a_missing_one_holds_nothing_up(
    tmp_path: Path, free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch, delta: bool
) -> None:
    monkeypatch.setattr(source, "FILE_SECONDS", 0.1)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    module, none = tmp_path / "mark.wasm", tmp_path / "none.wasm"
    module.write_bytes(marking("x-mark"))

    def plugin(path: Path, name: str = "mark", mark: str = "one", strategy: str = "FAIL_CLOSE") -> str:
        return PLUGIN.format(url=f"file://{path}", name=name, mark=mark, strategy=strategy)

    async with fleet(tmp_path, guard=None) as mesh:
        backend = await mesh.backend("api")
        await mesh.apply(SERVICE.format(port=port, backend=backend))
        await mesh.apply(plugin(module) + "---" + SCRIPT, "plugin.yaml")
        await mesh.envoy(CLIENT, delta=delta)
        await answers(mesh, url, 200, x_mark='{"mark":"one"}', x_lua="yes")
        async with mesh.load(url, host="api.test") as load:
            await mesh.apply(plugin(module, mark="two"), "plugin.yaml")
            await answers(mesh, url, 200, x_mark='{"mark":"two"}', x_lua="none")
            # Another module under the same URL; then another URL, at which there is none.
            module.write_bytes(marking("x-mark", "three"))
            await answers(mesh, url, 200, x_mark="three")
            await mesh.apply(plugin(none, mark="four"), "plugin.yaml")
            await mesh.apply(plugin(none, "open", strategy="FAIL_OPEN"), "open.yaml")
            status = mesh.plane.state.xds.status
            await eventually(
                lambda: any("shop.open" in held for _, held in status.accepted(EXTENSION)), what="Envoy has a stand-in"
            )
            await answers(mesh, url, 200, x_mark="three")
        assert load.failures == []
        await mesh.apply(plugin(none, "closed"), "closed.yaml")
        await answers(mesh, url, 403)
        none.write_bytes(marking("x-none", "there"))  # now all three have it
        await answers(mesh, url, 200, x_mark="none", x_none="there, there, there")
        for file in ("plugin", "open", "closed"):
            (tmp_path / "config" / f"{file}.yaml").unlink()
        await answers(mesh, url, 200, x_mark="none", x_none="none")
        await mesh.assert_all_taken()
