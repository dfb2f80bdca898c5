"""Identities of workloads: the certificate authority, the SDS secrets of proxies, and authentication of streams.

May import: ``failures``, ``snapshots``, ``model``, ``api``.
"""
