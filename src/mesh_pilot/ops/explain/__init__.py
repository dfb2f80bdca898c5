"""Explanations from the World: which object decides each step of a request, and what applies to a service or proxy.

- ``plane_evidence``: a proxy's resources, as ``explain.inspection.why`` reads them.
- ``attribution``: the objects that decide the steps; ``l4_fields``, ``precedence``: of connections and of hosts.
- ``service_description``, ``proxy_description``, ``object_description``: what applies, in words; ``policy_words``.
- ``description``: sections of lines, with the warnings of analysis.
- ``fields``: objects and fields with their places, for people.
"""
