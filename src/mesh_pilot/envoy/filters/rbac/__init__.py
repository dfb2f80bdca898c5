"""AuthorizationPolicy as RBAC and external authorization filters.

Rules: Istio's AuthorizationPolicy and authorization policy conditions references; Envoy's RBAC and ExtAuthz.
"""
