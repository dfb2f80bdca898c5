"""Consul's own mesh data as Istio's objects: config entries and intentions.

    mesh = ConsulMesh(MeshSettings())
    mesh.put_entry("service-splitter", "web", {"Kind": "service-splitter", "Name": "web", "Splits": [...]})
    for changes in mesh.flush(): ...

- `fields`: reads an entry, and knows which of its fields were not read.
- `entries`, `matches`, `subsets`: entries as values, with what of them can't be said.
- `routes`, `rules`, `intentions`, `permissions`: a service as VirtualService, DestinationRules, AuthorizationPolicy.
- `mesh`: all entries; converts what a change touches, and nothing else.

Pure: no I/O, no clock.
"""

from mesh_pilot.consul.mesh.mesh import ConsulMesh, LocationChange
from mesh_pilot.consul.mesh.values import EntryRef, IstioObject, MeshSettings, ServiceFacts

__all__ = ["ConsulMesh", "EntryRef", "IstioObject", "LocationChange", "MeshSettings", "ServiceFacts"]
