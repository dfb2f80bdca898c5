"""Analysis: problems that show only when objects are seen together, as ``istioctl analyze`` finds them.

- ``findings``: a message, its type, its place; ``codes``: the table of all types.
- ``picture``: the immutable values that analyzers read; ``analyze``: all messages about a World or a picture.
- ``imagined``: patches of EnvoyFilters at the proxies that files show.
- ``analyzers``: one file a topic; each analyzer is a pure function of a picture. ``ANALYZERS`` lists them in order.
- ``suppressions``, ``places``: what users do not want to hear, and the lines of fields.
"""
