"""OpenID Connect from the client's side: an issuer's endpoints, and the tokens that people log in with.

- ``settings``: the issuer and the client that is registered there.
- ``provider``: what is asked of the issuer: its configuration, tokens for a code, a device or a refresh token.
- ``device``: a login without a browser at hand (RFC 8628).
"""
