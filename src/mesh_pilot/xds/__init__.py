"""xDS, State of the World and Delta: the protocol as a pure state machine, its gRPC binding, the status registry.

``stream`` decides (with ``subscription`` for each type and ``held`` for what clients have), ``encode`` and ``decode``
turn its values to bytes and back, ``session`` runs it over a call, ``server`` is what ``rpc`` serves, ``status`` is
what metrics and people read. ``sets`` is what the engine implements.

May import: everything below (``envoy`` and down); the state machine itself imports only ``model``.
"""
