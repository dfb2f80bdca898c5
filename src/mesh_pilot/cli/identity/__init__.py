"""Commands for the CA, tokens and certificates."""
