"""The double of an API server answers as a real one does, over a port and without one."""

from __future__ import annotations

import pytest

from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, ApiServerError
from tests.support.api_double import IN_MEMORY, LEASES, PODS, ApiDouble, serving

ROUTES = ApiResource("networking.istio.io", ("v1alpha3", "v1beta1", "v1"), "virtualservices", "VirtualService")


def pod(name: str, **labels: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "shop", "labels": labels}, "spec": {}}


async def test_objects_are_written_as_at_a_real_server() -> None:
    double = ApiDouble([PODS, LEASES, ROUTES])
    async with serving(double) as access, ApiClient(access) as client:
        lease = await client.create(LEASES, {"metadata": {"name": "leader"}, "spec": {"holder": "a"}}, "istio-system")
        assert lease["apiVersion"] == "coordination.k8s.io/v1"
        with pytest.raises(ApiServerError, match="already exists") as refused:
            await client.create(LEASES, {"metadata": {"name": "leader"}}, "istio-system")
        assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
        newer = await client.update(LEASES, {**lease, "spec": {"holder": "b"}}, "istio-system")
        with pytest.raises(ApiServerError) as refused:
            await client.update(LEASES, {**lease, "spec": {"holder": "c"}}, "istio-system")
        assert refused.value.reason == "Conflict"
        assert await client.update(LEASES, newer, "istio-system") == newer, "what says the same is not written"
        await client.delete(LEASES, "leader", "istio-system")
        with pytest.raises(ApiServerError) as refused:
            await client.get(LEASES.path("v1", "istio-system", "leader"))
        assert refused.value.status == 404


async def test_the_status_is_written_apart() -> None:
    double = ApiDouble([ROUTES])
    async with ApiClient(IN_MEMORY, transport=double.transport()) as client:
        made = await client.create(ROUTES, {"metadata": {"name": "r"}, "spec": {"x": 1}, "status": {"y": 1}}, "shop")
        assert ("status" in made, made["metadata"]["generation"]) == (False, 1)
        found = await client.patch(ROUTES, "r", {"status": {"y": 2}, "spec": {"x": 9}}, "shop", subresource="status")
        assert (found["spec"], found["status"], found["metadata"]["generation"]) == ({"x": 1}, {"y": 2}, 1)
        steps = [{"op": "add", "path": "/metadata/labels", "value": {"a/b": "c"}},
                 {"op": "replace", "path": "/spec/x", "value": 2}]  # fmt: skip
        found = await client.patch(ROUTES, "r", steps, "shop", kind="json")
        assert (found["spec"], found["status"], found["metadata"]["generation"]) == ({"x": 2}, {"y": 2}, 2)
        with pytest.raises(ApiServerError, match="modified"):
            await client.patch(ROUTES, "r", {"metadata": {"resourceVersion": "1"}, "spec": {}}, "shop")


async def test_lists_have_pages_selectors_and_metadata_only() -> None:
    double = ApiDouble([PODS], largest_page=2)
    for name, app in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "z"), ("e", "x")):
        double.put(PODS, pod(name, app=app))
    async with ApiClient(IN_MEMORY, transport=double.transport()) as client:

        async def names(**selection: str) -> str:
            return "".join(found["metadata"]["name"] for found in await client.list_all(PODS, **selection))  # type: ignore[arg-type]

        assert await names() == "abcde"
        assert await names(namespace="other") == ""
        assert await names(label_selector="app in (x, y),app!=y") == "ace"
        assert await names(label_selector="!app") == ""
        assert await names(field_selector="metadata.name!=a,metadata.namespace=shop") == "bcde"
        (found, *_) = await client.list_all(PODS, metadata_only=True)
        assert set(found) == {"apiVersion", "kind", "metadata"}
        assert await client.list_all(ROUTES) == [], "it does not know these"
