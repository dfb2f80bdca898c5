"""Smallstep's step-ca, by its HTTP API, with a one-time token of a JWK provisioner for each certificate.

- ``settings``: where it is, and the provisioner.
- ``provisioner``: the provisioner's key, and tokens that it signs.
- ``ca``: certificates and roots.
"""
