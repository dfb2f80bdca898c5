"""Protection of a fleet from a change, and memory beyond a restart.

- ``rollout``: a change goes to a share of the proxies first.
- ``quarantine``: the object that a client refuses is withheld from it.
- ``state``: the last full state of each source and the history, in SQLite.

May import: ``traffic``, ``xds``, ``mesh``, ``world``, ``istio``, ``net``, ``model``, ``base``, ``api``.
"""
