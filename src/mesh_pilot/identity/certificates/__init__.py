"""Certificates of proxies and of this server: SDS, the CA service, renewal."""
