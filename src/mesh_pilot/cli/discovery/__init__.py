"""``mesh-pilot discovery``: its flags, the registries that it reads, the processes that it runs."""
