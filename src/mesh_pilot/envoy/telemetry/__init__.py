"""Access logs and tracing of listeners: what Telemetry and the mesh config select, and Envoy's messages for it.

``access_logs`` and ``tracing`` choose for a context; ``loggers`` builds the message of one extension provider, as the
second half of ``tracing`` does; ``problems`` finds providers that are named but cannot be used.
"""
