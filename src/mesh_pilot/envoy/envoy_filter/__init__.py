"""EnvoyFilter: patches to what the translators generate, as a layer over them that they know nothing of.

``selection`` says which EnvoyFilters are for a proxy (``Target.filters``). Where there are any, the catalog uses the
plans of ``plans`` in place of the translators' own; what no patch is for is still the very same resource that other
proxies have. A patch that can't be carried out costs only itself: ``problems`` lists what did not work and why.

Where the rules come from: Istio's reference of EnvoyFilter. What we do better than Pilot is said where it is done.
"""
