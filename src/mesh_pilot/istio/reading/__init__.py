"""Text and bytes to messages, and back: YAML, JSON, protobuf; objects and the mesh-wide settings.

YAML and specs are each read by two modules, and the full path has the last word. `yaml_fast` and `decode_fast` read the
common form, without lines, paths or reasons. They never report a problem: for anything else, an error included, they
give up (`UncommonYamlError`, None), and `yaml_marked` and `decode_json` read the same input from its start and say what
is wrong, and where. So a rule of the language is written in the full path; the fast one may only be less patient. Why
two: nearly all objects of a large mesh are fine, and lines and paths double the cost of each. A fast path that reported
the easy errors itself would have to agree with the full one about every text, not only about the good ones.
`tests/istio/test_yaml_fast.py` and `test_decode_fast.py` generate inputs and compare the pairs.

`yaml` and `decode` choose the path; `mesh` reads MeshConfig and MeshNetworks, always by the full one.
"""
