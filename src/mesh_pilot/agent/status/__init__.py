"""The agent's HTTP port: readiness, merged metrics, rewritten probes."""
