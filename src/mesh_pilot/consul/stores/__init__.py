"""Entries of Consul's KV store: configuration, and registrations of machines."""
