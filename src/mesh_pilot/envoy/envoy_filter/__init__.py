"""EnvoyFilter: patches to generated resources, as a layer over the translators, which know nothing of it.

Theory of operation
-------------------

``mesh.selection.envoy_filters`` finds the EnvoyFilters of a proxy (``ProxyKeys.filters``). Most proxies have none:
nothing here is called for them. For others, ``catalog.generators`` puts the plans of this package in front of the
translators' own. From an EnvoyFilter to bytes:

1. ``parse`` parses each EnvoyFilter once, whatever proxy it is for. The value of a ``patch.Patch`` is an Envoy message,
   which ``values`` reads from JSON.
2. ``plans`` decides which resources there are: patches add and remove clusters, listeners and extension configs. A name
   that no patch is for keeps the translator's own query, so its resource is shared with proxies without EnvoyFilters.
3. ``resources`` derives each patched resource from the translator's one. If no patch changes it, it is the same object.
4. ``apply`` applies patches to a decoded message: ``match`` finds what a patch is for, ``merge`` merges, and ``edit``
   tries one change at a time and edits ordered lists of filters.
5. ``trials`` checks the result, and leaves out patches because of which Envoy would refuse it (``refusals``) or wait
   forever for what it names (``served``).

A patch that cannot be applied costs only itself. Its ``PatchProblem`` is in the value it was found with: of an
EnvoyFilter (``parse.Parsed``), of a plan (``plans.PatchedPlan``) or of a resource (``resources.PatchedResource``). The
memo table remembers these, so the problems are there to be collected. Streams read plans and resources through
``unwrap_plan`` and ``unwrap_resource``: for them nothing changes when only problems do.

Rules: Istio's EnvoyFilter reference; ``docs/envoy-filters.md`` lists what differs from Istio.
"""
