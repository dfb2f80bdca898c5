"""From what people write to messages that are known to be good: the table of kinds, decoding and validation.

`kinds.KINDS` says which kinds there are; `yaml.load` reads text with line marks; `decode.decode` turns one object into
a `model.Config` or raises `model.ConfigError` with everything that is wrong with it; `mesh` does the same for
MeshConfig and MeshNetworks; `validation/` holds Istio's rules, a module a kind. No I/O.
May import: ``model``, ``api``.
"""
