"""Tokens that an API server vouches for."""
