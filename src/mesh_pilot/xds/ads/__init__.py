"""xDS, State of the World and Delta: the protocol as a pure state machine, its gRPC binding, the status registry.

From the inside out:

* ``messages`` (requests and responses as values), ``resources`` (what a stream reads: protocols that the catalog
  implements), ``pending_response``.
* ``subscription``: one type of one stream. Its "Theory of operation" is where to begin.
* ``ordering`` (make before break between types), ``unserved``, ``stream``: one stream. Pure up to here.
* ``decode``, ``encode``: protobuf. ``limits``: log lines and scopes per peer.
* ``session`` runs a stream over a call, ``server`` is what ``rpc`` serves, ``status`` is what metrics and people read.

The state machine itself imports only ``model``, ``engine`` and ``base``.
"""
