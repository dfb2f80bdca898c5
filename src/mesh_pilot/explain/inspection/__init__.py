"""Inspection: what a proxy's configuration does, read from a dump of it.

A dump is plain JSON as in Envoy's ``/config_dump``: the plane's (``/debug/config_dump``), a live Envoy's, or a file.
All three look alike here, so that the tables, the differences and the answers to "why" are the same for each.

- ``dump``: a dump read: clusters, listeners, routes, endpoints, secrets, by name.
- ``places``: the line of a field of an object, for people.

Light to import: no generated messages.
"""
