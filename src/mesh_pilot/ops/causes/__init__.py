"""Causes: things that are wrong now, each with since when, what it touches, and the command that helps.

One cause may show at a hundred proxies; here it is told once. What is over is not here. All that says how
something is (rows of lists, the page, its sentence) is made here, so that no two of them differ.

- ``now``: the whole plane. ``objects``, ``proxies``, ``services``, ``sources``, ``plane``: the parts of it.
- ``cause``: a cause, and how equal ones become one.
"""
