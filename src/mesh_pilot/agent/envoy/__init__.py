"""Envoy's life under the agent: found, started, restarted, drained, and never left behind."""
