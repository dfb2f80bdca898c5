"""Protection of a fleet from a change: quarantine, rollout, and what outlives a restart.

- ``quarantine``: the object that a client refuses is withheld from it.
- ``rollout``: a change goes to a share of the proxies first.
- ``state``: the last full state of each source and the history, in SQLite.
"""
