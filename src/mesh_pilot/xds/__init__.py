"""xDS, State of the World and Delta: the protocol as a pure state machine, its gRPC binding, the status registry.

May import: everything below (``envoy`` and down); the state machine itself imports only ``model``.
"""
