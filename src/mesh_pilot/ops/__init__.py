"""HTTP for operators and monitoring: ``/ready``, ``/metrics``, ``/debug/*`` and a web page.

Reads the other rooms (their ``statistics()``, the status registry, the World, the catalog's ``diagnostics()``). Only
the orders of an operator change anything.

- ``state``: the parts of the control plane that are read.
- ``app``: paths and handlers; ``overview``, ``proxy_pages``, ``world_pages``, ``quarantine_pages``, ``config_dump``,
  ``metrics``: contents.
- ``changes``: counts and logs changes; ``problems``: problems of single objects; ``reports``: problems of proxies.
- ``api``: the JSON API; ``access``: who may use the web port; ``admin``: the admin socket; ``accept``: an order.
- ``istiod_pages``: debug pages by istiod's names; ``turns``: long work in short turns.
- ``memory``: returns freed memory to the system.

May import: everything below.
"""
