"""Consul: its client, and all that reads from it or writes to it.

- ``stores``: entries of its KV store: configuration, and registrations of machines.
- ``identity``: its ACL tokens as identities of proxies; the keys of the CA.
- ``source``: services and configuration.
- ``election``: a lock and the list of replicas.
- ``mesh``: its config entries and intentions as Istio's objects.
- ``client``: its HTTP API.

May import: ``replicas``, ``sources``, ``identity``, ``istio``, ``net``, ``model``, ``base``.
"""
