"""Access to the web port: who asks, and what that caller may do.

- ``roles``: the file that gives roles to tokens and certificates. ``people``: the one that gives them to people.
- ``logins``: logins of people at an issuer. ``sessions``: what browsers have instead of tokens.
- ``gate``: the app before the app of the web port, that lets callers in or refuses them, and logs changes.

A role is held in namespaces, and a route says which role it needs and where: see ``api.visitors``.
"""
