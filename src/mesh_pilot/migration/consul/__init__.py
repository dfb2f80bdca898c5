"""Consul's config entries, intentions and catalog."""
