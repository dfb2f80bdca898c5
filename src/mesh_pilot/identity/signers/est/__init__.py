"""Enrollment over Secure Transport (EST, RFC 7030), which EJBCA, Keyfactor, Vault Enterprise, AD CS and others speak.

- ``settings``: where it is, and how we prove that we may ask for others.
- ``ca``: certificates and roots.
"""
