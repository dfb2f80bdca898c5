"""The intermediate form: what Istio's objects mean for a proxy, before anything of Envoy's API is written.

Functions here read the World through a ``View`` and return plain values: the services and ports that a proxy sees, the
DestinationRule that applies to a client, the routes of a VirtualService for a client, listeners that merge or conflict,
peer authentication, the servers of a Gateway. ``envoy`` renders these values as Envoy's messages.

A function takes the least key it can (a scope, a service and port), never the proxy, so that proxies which agree in
it share the result. ``@derived`` marks results that are remembered (see ``incremental``).

May import: ``security``, ``world``, ``incremental``, ``config``, ``model``, ``api``; never Envoy's API.
"""
