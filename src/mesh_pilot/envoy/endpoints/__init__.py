"""Endpoints (EDS): the load assignments of clusters."""
