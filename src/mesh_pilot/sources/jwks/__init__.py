"""The public keys of issuers of tokens, fetched from where RequestAuthentications say.

Proxies are sent the keys themselves, so that none of them has to reach the issuer. Rules: Istio's RequestAuthentication
reference (``jwksUri``, ``timeout``); OpenID Connect Discovery; JSON Web Key Sets (RFC 7517).
"""

from mesh_pilot.sources.jwks.source import KeySetDemand as KeySetDemand
from mesh_pilot.sources.jwks.source import KeySetNeed as KeySetNeed
from mesh_pilot.sources.jwks.source import KeySource as KeySource
from mesh_pilot.sources.jwks.source import wanted_by as wanted_by
