"""Listeners (LDS) of sidecars: filter chains, HTTP connection managers, inspectors."""
