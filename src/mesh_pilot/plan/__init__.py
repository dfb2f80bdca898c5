"""Plans: what a change of objects would do to each proxy, made by the code that serves, before anything is applied.

- ``past_world``: Worlds made of pictures of sources, and the resources of a proxy in them.

May import: ``analysis`` and down.
"""
