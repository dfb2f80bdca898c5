"""Configuration, written through the API server."""
