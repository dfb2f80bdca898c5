"""Resources of Kuma as objects of ours. Each of its meshes is a namespace.

- `resources`: documents as resources; which types are taken, and why others are not.
- `services`: Dataplanes and external services, as services and WorkloadEntries.
- `targets`: which clients and services a policy is about, in the old form and the new one.
- `settings`: timeouts, retries, circuit breakers, load balancers and faults, by service. `routes`: routes.
- `permissions`: who may call whom. `checks`: health checks and rate limits.
- `mesh`: all of one mesh.

Source of the fields: Kuma's documentation of each resource, "Policies" and "Reference".
"""

from mesh_pilot.migration.kuma.mesh import migrate_kuma

__all__ = ["migrate_kuma"]
