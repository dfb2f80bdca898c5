"""Consul's HTTP API: requests, blocking queries, settings."""
