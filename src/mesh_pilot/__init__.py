"""mesh-pilot: a standalone xDS control plane that reads the Istio API and programs Envoy.

The rooms, from the top down; each imports only from those below it:

``cli`` > ``app`` > ``ops`` > ``agent`` > ``migration`` > ``kubernetes`` > ``consul`` > ``explain`` > ``replicas`` >
``safety`` > ``traffic`` > ``sources`` > ``xds`` > ``envoy`` > ``identity`` > ``mesh`` > ``world`` > ``istio`` >
``engine`` > ``net`` > ``model`` > ``base`` > ``api``

Those to know first are ``model``, ``engine``, ``world``, ``mesh``, ``envoy``, ``xds``, ``sources`` and ``app``.
"""

__version__ = "0.1.0"
