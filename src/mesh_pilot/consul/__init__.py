"""Consul: its client, and all that reads from it or writes to it.

- ``client``: its HTTP API. ``mesh``: its config entries and intentions as Istio's objects.
- ``source``: services and configuration. ``election``: a lock and the list of replicas.
- ``stores``: what is written to its KV store. ``identity``: its ACL tokens, and the keys of the CA.
"""
