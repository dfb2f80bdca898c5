"""Listings of a proxy's resources, with the columns of ``istioctl proxy-config``: one module a type.

- ``listing``: a listing, and the cells that all types have.
"""
