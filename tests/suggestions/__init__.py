"""Suggestions of traffic."""
