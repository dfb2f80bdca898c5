"""The API server that tests drive, and the definitions that it serves kinds by."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh_pilot.istio.kinds import KINDS
from tests.support.apiserver import ApiServer
from tools.gen_crds import TARGET, definitions, istio_kinds, text


def test_the_definitions_in_samples_are_those_of_the_messages() -> None:
    assert text() == TARGET.read_text(encoding="utf-8"), "python tools/gen_crds.py"


@pytest.mark.slow
@pytest.mark.process
async def test_the_server_is_the_release_of_go_mod_and_serves_all_kinds_of_istio(apiserver: ApiServer) -> None:
    required = (Path(__file__).parent / "go.mod").read_text()
    assert f"require k8s.io/kubernetes {(await apiserver.ask('GET', '/version'))['gitVersion']} " in required
    await apiserver.install(definitions(istio_kinds()))
    for kind in istio_kinds():
        for version in kind.versions:
            served = await apiserver.ask("GET", f"/apis/{kind.group}/{version}/{kind.plural}")
            assert served["kind"] == f"{kind.name}List"


@pytest.mark.slow
@pytest.mark.process
async def test_objects_are_read_back_as_they_were_written_in_any_version(apiserver: ApiServer) -> None:
    await apiserver.install(definitions([KINDS["VirtualService"]]))
    spec = {
        "hosts": ["a.example"],
        "http": [
            {
                "match": [{"uri": {"prefix": "/"}, "headers": {"x": {"exact": "1"}}}],
                "route": [{"destination": {"host": "a", "port": {"number": 80}}, "weight": 100}],
                "timeout": "1.5s",
                "corsPolicy": {"allowCredentials": True},
            }
        ],
    }
    async with apiserver.namespace() as namespace:
        await apiserver.apply(namespace.object("networking.istio.io/v1", "VirtualService", "a", spec=spec))
        path = f"/apis/networking.istio.io/v1alpha3/namespaces/{namespace.name}/virtualservices"
        found = await apiserver.ask("GET", f"{path}/a")
        assert found["spec"] == spec
        reply = await apiserver.request("PATCH", f"{path}/a", {"spec": {"hosts": "not a list"}})
        assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert not (await apiserver.ask("GET", "/apis/networking.istio.io/v1/virtualservices"))["items"]
