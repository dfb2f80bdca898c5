"""The Istio API, the Gateway API, the CA service and MCP as betterproto2 dataclasses.

Generated from `proto/` by `tox -e proto`; never edited. May import nothing of mesh_pilot.

A package of the proto files is a module: `istio.networking.v1alpha3.VirtualService` is
`mesh_pilot.api.istio.networking.v1alpha3.VirtualService`. Message fields that are absent are `None`, also the
wrappers (`BoolValue` is `bool | None`), durations are `timedelta`, timestamps aware `datetime`s, and members of a
oneof are `None` unless set. An empty message is falsy: ask `is not None`.
"""

from functools import lru_cache

import betterproto2

# The library asks for the hints of a whole class again for each of its fields: 60 ms at every start for MeshConfig.
betterproto2.Message._type_hints = classmethod(lru_cache(8)(betterproto2.Message._type_hints.__func__))
