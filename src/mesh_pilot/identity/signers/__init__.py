"""Signers of certificates. Each has the one method of ``security.signing.Signer``."""
