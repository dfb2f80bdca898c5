"""Text and bytes to validated messages: the table of kinds, decoding and validation. No I/O.

- `kinds.KINDS`: the kinds that are read.
- `yaml.load`: YAML and JSON text to plain data, with a line for every field.
- `decode.decode`: one object to a `model.Config`; raises `model.ConfigError` with every problem. `mesh` does the same
  for MeshConfig and MeshNetworks.
- `validation`: Istio's rules, by kind.
- `encode_json`, `encode_proto`: messages back to plain data and to bytes.

Fast and full path. YAML and specs are each read by two modules: `yaml_fast` and `decode_fast` handle the common form
without lines, paths or reasons; for anything else, an error included, they give up (`UncommonYamlError`, None) and the
full path (`yaml_marked`, `decode_json`) reads the same input again and says what is wrong, and where. A fast path never
reports a problem. `tests/config/test_yaml_fast.py` and `test_decode_fast.py` generate inputs and compare the pairs.

May import: ``protowire``, ``model``, ``api``.
"""
