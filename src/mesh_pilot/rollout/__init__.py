"""Rollouts: a change goes to a share of the proxies first, and to the others while these take it well.

May import: ``quarantine`` and down.
"""
