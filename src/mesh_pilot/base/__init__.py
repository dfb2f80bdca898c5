"""Tools that know nothing of a mesh: containment of errors, backoff, untrusted JSON, output, sealing, work in turns.

May import: nothing.
"""
