"""Clusters: what they connect to, the DestinationRule and HealthCheck that apply, and which endpoints come first."""
