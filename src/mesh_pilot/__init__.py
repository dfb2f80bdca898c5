"""mesh-pilot: a standalone xDS control plane that reads the Istio API and programs Envoy.

The rooms, from the top down; each imports only from those below it:

``cli`` > ``agent`` > ``app`` > ``webhooks`` > ``status`` > ``ops`` > ``truth`` > ``config_api`` > ``rollout`` >
``quarantine`` > ``plan`` > ``analysis`` > ``migration`` > ``inspection`` > ``xds`` > ``envoy`` > ``mesh`` >
``security`` > ``config_store`` > ``election`` > ``sources`` > ``consul_mesh`` > ``state`` > ``world`` >
``gateway_api`` > ``failures`` > ``incremental`` > ``snapshots`` > ``http`` > ``rpc`` > ``mcp`` > ``kubernetes`` >
``apiserver`` > ``fetching`` > ``config`` > ``protowire`` > ``sqlite_file`` > ``upkeep`` > ``sealing`` > ``output`` >
``model`` > ``api``
"""

__version__ = "0.1.0"
