"""The API described in OpenAPI 3.1, made of its routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

from mesh_pilot import __version__
from mesh_pilot.model.json import Json, JsonForm, form_of, schemas_of
from mesh_pilot.ops.api.paging import AssessedPiece
from mesh_pilot.ops.api.route import TEXT, ApiRoute, Parameter, list_of, object_of
from mesh_pilot.ops.api.visitors import Role

_ERRORS = {
    "400": "The request is wrong.",
    "401": "Who asks?",
    "403": "The caller lacks the role in a namespace; the error says which.",
}


def document(base: str, routes: Sequence[ApiRoute]) -> Json:
    """The document; ``base``: what every path begins with."""
    paths: dict[str, dict[str, Json]] = {}
    for route in routes:
        path = re.sub(r":\w+\}", "}", base + route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    classes = [each for route in routes for form in _forms(route) for each in form.classes]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mesh-pilot",
            "version": __version__,
            "description": "The API of a control plane: see docs/api.md. Each answer is JSON.",
        },
        "security": [{}, {"token": []}, {"basic": []}, {"certificate": []}],
        "paths": {path: dict(operations) for path, operations in paths.items()},
        "components": {
            "schemas": {"Error": dict(object_of(error=TEXT)), **schemas_of(classes)},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic", "description": "The token is the password."},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _forms(route: ApiRoute) -> list[JsonForm]:
    """The forms that an answer may have: a list that may be cut is a piece where `limit` asks for one."""
    piece: Any = AssessedPiece
    kinds = [route.answers, *(piece[each] for each in get_args(route.answers) if route.sorted_by)]
    return [form_of(kind) for kind in kinds]


def _schema(route: ApiRoute) -> Json:
    first, *others = (form.schema for form in _forms(route))
    return {"anyOf": [first, *others]} if others else first


def _errors(route: ApiRoute) -> dict[str, str]:
    """The meaning of each status that is an error."""
    unknown = {"404": "It does not exist."} if "{" in route.path else {}
    return {**_ERRORS, **unknown, **{str(status): what for status, what in route.failures.items()}}


def _operation(route: ApiRoute) -> Json:
    names = re.sub(r"[{}]|:\w+", "", route.path).strip("/").replace(".", "_")
    failed = {"$ref": "#/components/schemas/Error"}
    errors: dict[str, Json] = {
        status: {"description": what, "content": {"application/json": {"schema": failed}}}
        for status, what in _errors(route).items()
    }
    found: dict[str, Json] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}_{names}"),
        "summary": route.summary,
        "tags": [names.split("/")[0]],
        "x-role": route.role.value,
        "x-scope": route.scope.value,
        "parameters": [_parameter(route, each) for each in route.parameters],
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {"application/json": {"schema": _schema(route)}},
            },
            **errors,
        },
    }
    if route.role is not Role.VIEW:
        found["security"] = [{"token": []}, {"basic": []}, {"certificate": []}]
    if route.body is not None:
        found["requestBody"] = {"content": {"application/json": {"schema": dict(route.body)}}}
    return found


def _parameter(route: ApiRoute, parameter: Parameter) -> Json:
    is_in_path = f"{{{parameter.name}" in route.path
    return {
        "name": parameter.name,
        "in": "path" if is_in_path else "header" if parameter.is_header else "query",
        "required": is_in_path or parameter.is_required,
        "description": parameter.description,
        "schema": dict(list_of(parameter.schema) if parameter.is_repeated else parameter.schema),
    }
