"""Istio's rules for what is written in a spec: a module a kind, each with `validate(spec, context)`.

The rules are those of Istio's `pkg/config/validation`; what Istio only warns of is a warning here. Modules that are not
named after a kind hold what several kinds share.
"""
