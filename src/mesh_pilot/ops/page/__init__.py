"""The web page: ES modules and a style sheet in ``static/``, which read the API at ``/api/v1`` and nothing else.

``files`` serves them, with the headers that bound what a browser runs. ``static/views.js`` says what a view is,
``static/components.js`` has what all views are made of; ``static/vendor`` are libraries as their authors built them.
"""
