"""Who is who: SPIFFE identities, the certificate authority, and the identity secrets that proxies get over SDS.

May import: ``model``, ``api``.
"""
