"""A client of a Kubernetes API server: one way to read, watch and write objects of any kind.

    access = load_access(None)
    async with ApiClient(access) as client, trio.open_nursery() as nursery:
        found = await client.list_all(SERVICES)
        await client.patch(SERVICES, "reviews", {"metadata": {"labels": {"app": "reviews"}}}, namespace="default")
        nursery.start_soon(reflect, client, SERVICES, listener, Backoff())

- `access`: the server and who we are to it; `kubeconfig`: as kubectl finds them.
- `credentials`: those of the next request: files are read again, plugins run; `connections`: TLS and proxies.
- `client`: requests, each one object or all of them.
- `reflector`: the objects of one resource, listed and then watched forever.
- `resource`: the name and versions of a resource.

It knows the API's conventions, and no kind of object.
"""

from mesh_pilot.kubernetes.apiserver.access import Access, ExecPlugin, KubernetesError, Pem
from mesh_pilot.kubernetes.apiserver.client import ApiClient, ApiServerError
from mesh_pilot.kubernetes.apiserver.kubeconfig import access_of_kubeconfig, load_access
from mesh_pilot.kubernetes.apiserver.reflector import reflect
from mesh_pilot.kubernetes.apiserver.resource import ApiResource, Object, ResourceListener

__all__ = [
    "Access",
    "ApiClient",
    "ApiResource",
    "ApiServerError",
    "ExecPlugin",
    "KubernetesError",
    "Object",
    "Pem",
    "ResourceListener",
    "access_of_kubeconfig",
    "load_access",
    "reflect",
]
