"""Text and bytes to validated messages: the table of kinds, decoding and validation. No I/O.

Packages, from the top down; a package imports those below it only, and ``kinds`` stands between the first two:

- ``reading``: YAML, JSON and protobuf to messages, and back. `yaml.load` gives plain data with a line for every field,
  `decode.decode` a `model.Config` of it, or `model.ConfigError` with every problem. Its docstring says which of two
  readers has the last word.
- ``rules``: Istio's validation, by kind.
- ``meaning``: the meaning of single values, and of removed kinds in the words of today.

`kinds.KINDS`: the kinds that are read, each with its message and its rules.

May import: ``protowire``, ``model``, ``api``.
"""
