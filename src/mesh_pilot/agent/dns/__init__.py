"""Names of the mesh answered from the name table, all others forwarded, cached and retried."""
