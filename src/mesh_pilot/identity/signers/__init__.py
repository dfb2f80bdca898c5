"""Signers of certificates. Each has the one method of ``identity.signers.signing.Signer``."""
