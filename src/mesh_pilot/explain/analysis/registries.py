"""The registries that networks may take endpoints from."""

REGISTRIES = frozenset(("consul", "external", "kubernetes", "mock"))
"""By name, in lower case."""
