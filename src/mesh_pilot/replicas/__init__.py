"""Several processes as one control plane.

- ``workers``: processes of one machine that share its ports.
- ``registration``: machines that register themselves, known to all replicas.
- ``election``: the replica that does what must be done once.

May import: ``safety``, ``xds``, ``identity``, ``mesh``, ``world``, ``istio``, ``net``, ``model``, ``base``, ``api``.
"""
