"""Identities of workloads: who is calling, and certificates for those who may have one.

- ``certificates``: the SDS secrets of proxies, the service that signs for callers, this server's own.
- ``openid``: the client's side of OpenID Connect, by which people log in.
- ``authenticators``: judges of evidence, in a chain.
- ``authority``: the CA, its keys and its rotation.
- ``tokens``: join tokens.
- ``signers``: signing requests, and signers elsewhere, such as Vault.
- ``trust``: callers, trust domains with their bundles, the roots of proxies.

May import: ``istio``, ``engine``, ``net``, ``model``, ``base``, ``api``.
"""
