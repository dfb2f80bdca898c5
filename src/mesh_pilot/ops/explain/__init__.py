"""Explanations from the World: which object decides each step of a request, and what applies to a service or proxy.

- ``plane_evidence``: a proxy's resources, as ``inspection.why`` reads them.
- ``attribution``: the objects that decide the steps.
- ``fields``: objects and fields with their places, for people.
"""
