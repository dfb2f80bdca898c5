"""Configuration of other meshes as a folder of ours: pure functions from foreign objects to objects, and what is left.

- ``folder``: where foreign objects come from, and the files that are written.
- ``kubernetes``: dumps of a cluster with Istio.
- ``consul``: config entries, intentions and catalogs of Consul.
- ``kuma``: resources of Kuma.
- ``base``: foreign objects, read field by field, and the record of all that was found and made.

May import: ``consul``, ``explain``, ``sources``, ``istio``, ``model``, ``base``.
"""
