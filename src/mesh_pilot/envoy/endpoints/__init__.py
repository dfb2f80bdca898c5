"""Endpoints (EDS): the load assignment of a cluster for a client."""
