"""The API that users write: its kinds, decoding, validation, and what stands for it. No I/O.

- ``gateway_api``: the Gateway API's objects as Istio's, and their statuses.
- ``reading``: YAML, JSON and protobuf to messages, and back. `yaml.load` gives plain data with a line for every field,
  `decode.decode` a `model.Config` of it, or `model.ConfigError` with every problem. Its docstring says which of two
  readers has the last word.
- ``kubernetes``: Kubernetes' Services, Endpoints, Pods and Nodes as services and endpoints.
- `kinds.KINDS`: the kinds that are read, each with its message and its rules.
- ``rules``: Istio's validation, by kind.
- ``meaning``: the meaning of single values, and of removed kinds in the words of today.

May import: ``model``, ``base``, ``api``.
"""
