"""Kubernetes API servers: the client, and all that reads from one or writes to one.

- ``webhooks``: validation of Istio objects and injection of sidecars, on request of an API server.
- ``status``: conditions, events and messages at objects.
- ``stores``: configuration, written through the API server.
- ``election``: a Lease as the lock.
- ``source``: objects and services, of other clusters too.
- ``identity``: tokens of service accounts.
- ``apiserver``: credentials, requests, reflectors.

May import: ``consul``, ``explain``, ``replicas``, ``sources``, ``identity``, ``mesh``, ``world``, ``istio``, ``net``,
``model``, ``base``, ``api``.
"""
