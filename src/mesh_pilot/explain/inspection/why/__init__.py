"""Why a request goes where it goes: Envoy's choices, made again on a proxy's configuration, with their reasons.

``story`` (the answer) > ``evidence`` (the configuration) > ``listeners``, ``chains``, ``routes``, ``clusters``,
``rbac``, ``paths``, ``route_words``, ``subsets``, ``upgrades`` (one choice each) > ``matchers`` > ``request``

Everything is plain JSON of Envoy's messages. The choices are checked against a real Envoy in ``tests/inspection/why``.
"""
