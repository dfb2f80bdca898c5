"""Envoy's messages, rendered from the intermediate form (``mesh``), and the sets of resources that streams read.

The packages, from the top down; each imports only from those below it:

``catalog`` > ``envoy_filter`` > ``refusals`` > ``grpc`` > ``gateway`` > ``listeners`` > ``routes`` > ``filters`` >
``telemetry`` > ``clusters`` > ``endpoints`` > ``tls`` > ``core``

A translator is a function ``f(view, *key)`` that reads only through ``view``. With ``@derived`` its results are
remembered, and the memo table knows what depends on what; without, it is a part of whatever calls it.

May import: ``identity``, ``mesh``, ``world``, ``istio``, ``engine``, ``model``, ``base``, ``api``; and Envoy's API.
"""
