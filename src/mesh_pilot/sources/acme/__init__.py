"""Certificates for gateways, ordered from an issuer that speaks ACME (RFC 8555), proven by http-01.

- ``source``: the Secrets and challenges as events, on every replica; the orders, by the leader
- ``wanted``: which credentials the mesh config and the Gateways ask for
- ``stored``: what is kept of a credential and of the account, and when the next order is due
- ``protocol``: an order at an issuer, by the library ``acme``; imported with the first order

The leader writes challenges, certificates and failures to a store (`identity.authority.store`); all replicas, the
leader too, serve what they read there. So a follower answers a challenge that the leader was given, a restart orders
nothing, and a new leader knows how long the last one was told to wait.
"""
