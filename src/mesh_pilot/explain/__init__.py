"""Answers about what is in force, and why.

- ``truth``: which version of an object and of a resource a proxy has.
- ``analysis``: problems that show only when objects are seen together.
- ``inspection``: an Envoy's configuration dump, read; ``plan``: what a change would do.
- ``problems``: problems of single objects as lines.
"""
