"""Probes of the application: HTTP, TCP, exec, gRPC."""
