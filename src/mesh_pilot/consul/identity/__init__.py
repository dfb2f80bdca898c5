"""Consul's ACL tokens as identities of proxies; Consul as the place of the CA's keys."""
