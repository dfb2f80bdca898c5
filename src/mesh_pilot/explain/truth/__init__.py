"""Which version of an object, and of a resource, a proxy has, and why. Every tool that says so asks here.

An object passes four gates on its way to a proxy, and each may keep a newer version back: *validation* (refused where
it enters), the *guard* of its source (held), a *rollout* (in canary), *quarantine* (withheld). Then the proxy itself
refuses what is made of it, has not answered yet, or accepts it and does not use it (warming). The states are exclusive:
the gate nearest to the proxy decides which version it has, so it is the one that is told.

- ``states``: the states, and the pure functions from facts to a state.
- ``fleet``: the states of objects over all proxies, which workers add up.
- ``facts``: the facts, taken from the parts of a control plane.
"""
