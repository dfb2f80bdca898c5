"""Auto-registration: WorkloadEntries of connected proxies, made from their WorkloadGroups, and the health of workloads.

- ``records``: what is known of a workload, shared by all replicas; the objects of the World that it comes to.
- ``membership``: which replica has which record, when one ends: a pure state machine.
- ``admission``: which workload may be registered at which address.
- ``stores``: the places of records: this process, or Consul's KV store.
- ``registrar``: tells the membership of streams, carries out what it decides, and is the source of its objects.
- ``settings``: all that can be set.

In a worker that is not the first there is only the admission: what it has to tell goes to the first one.

AdmissionRules: Istio's auto-registration of VMs (WorkloadGroup reference).
"""
