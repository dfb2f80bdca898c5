"""The JSON API at ``/api/v1``: what the command line and the page show, for programs too.

- ``route``: one method of the API, with all that its documentation says.
- ``app``: every route in order, and the app made of them.

Each other module has the routes of one topic, in a function ``routes(state)``.
"""
