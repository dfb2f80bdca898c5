"""Analysis: problems that show only when objects are seen together, as ``istioctl analyze`` finds them.

- ``findings``: a finding, its code and its place; the table of all codes.
- ``analyzers``: one file a topic; each analyzer is a pure function of a World. ``ANALYZERS`` lists them in order.

May import: ``envoy`` and down, and ``inspection``.
"""
