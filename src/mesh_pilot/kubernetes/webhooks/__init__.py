"""Admission webhooks of an API server: validation of Istio objects, injection of sidecars, and what keeps both trusted.

``admission`` reads and writes AdmissionReviews; ``validation`` judges objects by the rules for files; ``injection``
makes the patch of a Pod; ``app`` serves them over HTTPS; ``ca_bundles`` and ``root_certificates`` write what others
need to trust us.


Source of the rules: Kubernetes, "Dynamic Admission Control".
"""
