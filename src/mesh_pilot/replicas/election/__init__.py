"""Leader election among replicas, for what must be done once.

    election = settings.election(replica)      # or Alone(replica): a single replica always leads
    election.duty("entries' clean-up", clean)  # runs while this replica leads, cancelled the moment it does not
    nursery.start_soon(election.run)

- ``base``: the contract: elections, terms, duties, locks. ``tenure``: how long a term surely lasts, by our own clock.
- ``elections``: a single replica, and replicas that compete for a lock.
- ``consul_lock``, ``consul_kv``, ``replica_list``: a session and a lock in Consul's KV store, and who else is there.
- ``kubernetes_lease``, ``lease_record``: a Lease of Kubernetes, taken as client-go takes it.
- ``settings``: all that can be set.

A leader stops by its own clock before its lock can be another's.
"""
