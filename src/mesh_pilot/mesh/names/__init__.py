"""Names that Envoys, dashboards and clients know: of clusters, listeners, secrets, statistics and hosts."""
