"""Answers about what is in force, and why.

- ``suggestions``: objects that follow from the traffic of a mesh.
- ``plan``: the effect of a change on each proxy, before it is made.
- ``truth``: the version of an object and of a resource that a proxy has.
- ``analysis``: problems that show only when objects are seen together, and those of single objects as lines.
- ``inspection``: an Envoy's configuration dump, read.

May import: ``safety``, ``traffic``, ``sources``, ``xds``, ``envoy``, ``mesh``, ``world``, ``istio``, ``model``,
``base``, ``api``.
"""
