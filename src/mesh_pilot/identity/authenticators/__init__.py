"""Authenticators, one kind of evidence a file. Each has the methods of ``security.callers.Authenticator``."""
