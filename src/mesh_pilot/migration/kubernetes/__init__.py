"""Dumps of a cluster with Istio."""
