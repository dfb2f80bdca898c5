"""Vault, or OpenBao: the PKI secrets engine signs, by its HTTP API; the key of its CA never comes near us.

- ``settings``: where it is, and how we log in.
- ``client``: requests, with a token that is kept alive.
- ``ca``: certificates, and the roots and revocation lists of the engine's issuers.
"""
