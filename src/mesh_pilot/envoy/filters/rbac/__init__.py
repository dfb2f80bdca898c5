"""AuthorizationPolicies as Envoy's RBAC: ``policies`` has the filters, the other files what one rule becomes.

Rules: Istio's AuthorizationPolicy and authorization policy conditions references; Envoy's RBAC filters.
"""
