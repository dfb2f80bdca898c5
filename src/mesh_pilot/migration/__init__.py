"""Configuration of other meshes as a folder of ours: pure functions from foreign objects to objects, and what is left.

- `reading`: texts as foreign objects. `fields`: reads one, and knows which of its fields nobody read.
- `record`: everything found and made; a foreign object, or a field of it, is taken or listed. `making`: valid objects.
- `kubernetes`, `kubernetes_services`, `kubernetes_secrets`, `kubernetes_kinds`: dumps of a cluster with Istio.
- `consul`, `consul_gateways`, `consul_services`: config entries, intentions and catalogs of Consul.
- `kuma`: resources of Kuma.
- `detection`: tells which of these a string comes from. `folder`, `report`: the files that are written.

No I/O.

May import: ``sources``, ``consul_mesh``, ``kubernetes``, ``config``, ``model``.
"""
