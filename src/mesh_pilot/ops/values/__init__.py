"""The values that people and programs are shown, made of a plane: one module a subject, and one meaning everywhere.

The API answers with them and describes them (``api.openapi``), the page and the commands read the API, istiod's pages
take from them what they can. Whoever wants to show something new adds a value here and a route in ``api``.
"""
