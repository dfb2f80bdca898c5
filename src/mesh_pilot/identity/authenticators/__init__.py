"""Authenticators, one kind of evidence a file. Each has the methods of ``identity.trust.callers.Authenticator``."""
