"""The registries that networks may take endpoints from."""

REGISTRIES = frozenset(("consul", "external", "kubernetes", "mock"))
"""The names of the registries, in lower case."""
