"""Protobuf messages and byte templates that every package here uses."""
