"""AWS Private CA signs, by its API; docs/signers-aws.md is the page.

- ``settings``: which CA, and by which template.
- ``account``: who we are to AWS and where its API is, found as its own tools find them.
- ``api``: signed requests, and what its errors mean.
- ``ca``: certificates and roots.
"""
