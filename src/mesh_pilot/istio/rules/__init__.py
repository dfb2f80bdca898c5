"""Istio's rules for specs, by kind: ``validate(spec, context)`` yields problems.

They follow Istio's `pkg/config/validation`, warnings included. Modules that are not named after a kind have rules that
several kinds share, or the rules of several small kinds.

A rule of one field is declared: `context.check_values` takes a function that gives the reason against a value (those
of `names` and `values` are called ``..._reason``) and the names of the fields that it is for; `check_parts` takes the
rules of a message inside. Rules about several fields are code. A table of all fields for each message would hide the
order of the problems, which users read from the top, and the half of the rules that look at two fields at once. Routes
of HTTP and the rules of an AuthorizationPolicy are loops all the same: a mesh has many, and each would be checked a
fifth more slowly.
"""
