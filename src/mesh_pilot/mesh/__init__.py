"""The intermediate form: the meaning of Istio's objects for a proxy, in plain values.

Functions here read the World through a ``View``. ``envoy`` renders their results as Envoy's messages.

Packages, from the top down: ``virtual_hosts`` (which ones a route table has), ``listeners`` (which merge or conflict),
``policies`` (mTLS, limits, logs, metrics, extensions), ``legacy`` (the security kinds of Istio 1.1), ``routing`` (the
routes for a client), ``reach`` (the services that a scope may reach), ``virtual_services`` (their rules), ``clusters``
(DestinationRules and preferred endpoints), ``proxy`` (the keys of translators), ``settings`` (of the mesh),
``selection`` (by labels), ``names``.

A function takes the least key that it needs (a scope, a service and port), never the proxy, so that proxies with equal
keys share the result. ``@derived`` marks results that the memo table stores (see ``engine``).

May import: ``world``, ``istio``, ``engine``, ``model``, ``base``, ``api``; never Envoy's API.
"""
