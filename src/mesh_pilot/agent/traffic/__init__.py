"""Counts of requests and connections: Envoy's counters are read, and their increases reported to the control plane."""
