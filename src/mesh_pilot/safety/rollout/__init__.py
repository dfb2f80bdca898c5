"""Rollouts: a change of configuration goes to a share of the proxies first, the canary, and on by steps.

``start`` of an operator arms a rollout: the next change of objects is the one. With a plan for all changes, each is.
While it runs, the proxies outside the canary are served the old values of the changed objects (``world.overlays``); all
that is not an object of configuration, such as endpoints and secrets, reaches everybody at once. A step is over when
its time is, all connected proxies of the canary have accepted what they were sent, and their traffic is known not to be
worse. The first refusal in the canary, or traffic that got worse, takes the change back: everybody has the old values
until one of the objects changes again, or an operator promotes it.

A rollout is an item of the World, written by the reducer in the same revision as the change that it is about. Without
one there is no overlay, and nothing is computed that would not be computed anyway.

- ``progress``: the pure state machine, with time and proxies given.
- ``weights``: weights on their way, for a rollout that reaches all proxies by steps of a change of weights.
- ``conditions``: what is asked of the canary's traffic; ``evidence``: what it is like; ``judge``: whether that will do.
- ``controller``: tells it what changes, connects, accepts and refuses, and the reducer what follows.
"""
