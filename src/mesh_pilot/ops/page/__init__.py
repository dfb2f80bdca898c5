"""The web page: ES modules and a style sheet in ``static/``, which read the API at ``/api/v1`` and nothing else.

``files`` serves them, with the headers that bound what a browser runs.
"""
