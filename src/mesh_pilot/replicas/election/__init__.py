"""Leader election among replicas, for what must be done once.

    election = settings.election(replica)      # or Alone(replica): a single replica always leads
    election.while_leading("clean-up", clean)  # cancelled as soon as this replica leads no more
    nursery.start_soon(election.run)

- ``base``: the contract: elections, terms, tasks of the leader, locks. ``term_lease``: how long a term surely lasts, by
  our own clock.
- ``elections``: a single replica, and replicas that compete for a lock.

A leader stops by its own clock before its lock can be another's.
"""
