"""Istio's rules for specs, by kind: ``validate(spec, context)`` yields problems.

They follow Istio's `pkg/config/validation`, warnings included. Modules that are not named after a kind have rules that
several kinds share, or the rules of several small kinds.
"""
