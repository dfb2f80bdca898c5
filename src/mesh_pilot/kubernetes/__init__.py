"""Kubernetes API servers: the client, and all that reads from one or writes to one.

- ``apiserver``: credentials, requests, reflectors. ``source``: objects and services, of other clusters too.
- ``election``: a Lease. ``stores``: configuration. ``identity``: tokens of service accounts.
- ``status``: conditions and events of objects. ``webhooks``: validation and injection.
"""
