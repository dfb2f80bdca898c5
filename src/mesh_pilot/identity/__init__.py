"""Identities of workloads: the certificate authority, the SDS secrets of proxies, the authentication of
callers, and the service that signs certificates for keys that workloads keep.

May import: ``sources``, ``failures``, ``snapshots``, ``rpc``, ``apiserver``, ``fetching``, ``config``, ``protowire``,
``sealing``, ``model``, ``api``.
"""
