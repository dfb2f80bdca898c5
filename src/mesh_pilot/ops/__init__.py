"""HTTP for operators and monitoring: ``/ready``, ``/metrics``, ``/debug/*``, the API, and a web page.

Reads the other rooms (their ``statistics()``, the status registry, the World, the catalog's ``diagnostics()``). Only
the orders of an operator change anything. ``app``, ``workers``, ``admin`` and ``monitoring`` compose the packages, from
the top down:

- ``access``: who may use the web port. ``page``: the web page. ``istiod``: debug pages by istiod's names.
- ``metrics``: Prometheus' metrics. ``api``: the JSON API, its orders included.
- ``causes``: what is wrong now. ``explain``: objects that decide and apply, in words. ``values``: what is shown.
- ``plane``: the parts of a control plane.
- ``observers``: changes and problems, counted and logged. ``tracing``: traces of revisions.
- ``process``: profiles and memory. ``web``: answers of HTTP.

May import: everything below.
"""
