"""TLS contexts, upstream and downstream, and the secrets (SDS) that they refer to."""
