"""Kubernetes' core objects in the terms of the mesh, wherever they are read from (a Galley over MCP, for now).

- `objects`: what one Service, Endpoints, Pod or Node says.
- `services`: these joined into services and their endpoints, incrementally.

May import: ``config``, ``model``, ``api``.
"""
