"""Common protobuf messages and byte templates."""
