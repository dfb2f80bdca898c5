"""Access to the web port: who asks, and what that caller may do.

- ``roles``: the roles, a caller, and the file that gives roles to tokens and certificates.
- ``sessions``: logins of browsers.
- ``gate``: the app before the app of the web port, that lets callers in or refuses them, and logs changes.
"""
