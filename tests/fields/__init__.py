"""Each field of each kind has an effect, or is told to have none.

`examples/` has objects by topic. What proxies are sent differs without any field of these, which is its effect.
"""
