"""AuthorizationPolicy: which policies are for a proxy, what their rules mean to Envoy, and the filters that ask.

Rules: Istio's AuthorizationPolicy and authorization policy conditions references; Envoy's RBAC and ExtAuthz.
"""
