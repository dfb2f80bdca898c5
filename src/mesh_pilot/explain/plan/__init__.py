"""Plans: what a change of objects would do to each proxy, made by the code that serves, before anything is applied.

- ``past_world``: Worlds made of pictures of sources, and the resources of a proxy in them.
- ``picture``: all that decides what a plane's proxies are served, as JSON and back, without private keys.
- ``objects``: the objects that a proposal changes, field by field (``differences``).
- ``client``: a proxy in words, on the stream that serves real ones.
- ``planning``: a World, its proxies, and what changed objects come to.
- ``made_up``: proxies where none are known.
- ``report``: a plan as JSON and as plain text.
"""
