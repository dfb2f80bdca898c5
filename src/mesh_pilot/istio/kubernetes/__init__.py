"""Kubernetes' core objects in the terms of the mesh, read from an API server or from a Galley.

- `objects`: what one Service, EndpointSlice, Endpoints, Pod, Node or Namespace says. `validation`: what is wrong in it.
- `galley`: the objects of a Galley, in the form of an API server's.
- `services`: these joined into services and their endpoints, incrementally.
"""
