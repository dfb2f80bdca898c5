"""Several processes as one control plane.

- ``election``: which replica does what must be done once.
- ``registration``: machines that register themselves, known to all replicas.
- ``workers``: processes of one machine that share its ports.
"""
