"""The web page: the HTML that is there without scripts, and the files of the page itself.

- ``html``: pieces of HTML, each escaped and bounded.
- ``files``: the ES modules and the style sheet of ``static/``, and the headers that all of it is sent with.

The modules read the API at ``/api/v1`` and know nothing else of the plane.
"""
