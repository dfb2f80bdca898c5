"""Servers and clients on Trio.

- ``otlp``: traces and metrics sent to OpenTelemetry's receivers.
- ``http``: an HTTP/1.1 server for ASGI apps.
- ``rpc``: gRPC, with TLS, addresses and limits.
- ``fetching``: documents of third parties, with bounds on bytes, time, redirects and addresses.

May import: ``base``.
"""
