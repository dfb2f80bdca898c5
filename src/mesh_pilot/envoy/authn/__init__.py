"""RequestAuthentication: which tokens a proxy takes, and by whose keys it tells good ones.

Rules: Istio's RequestAuthentication reference; Envoy's JwtAuthentication.
"""
