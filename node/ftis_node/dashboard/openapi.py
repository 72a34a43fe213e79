"""The published description of the programming interface, made from the models that check it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic.json_schema import models_json_schema

from ftis_node import __version__
from ftis_node.dashboard import schema
from ftis_node.dashboard.api import Handler

_REFERENCE = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address: its handler, parameters, answer, and further statuses with what they mean. An answer of None is
    plain JSON or text; `body` is what a POST takes."""

    path: str
    handler: Handler
    question: type[schema.Question]
    answer: type[schema.Answer] | None = None
    method: str = "GET"
    media: str = "application/json"
    body: type[schema.Question] | None = None
    faults: tuple[int, ...] = ()


_FAULTS = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "This page takes no actions, or the request comes from another page.",
    404: "There is no such thing, or not any more.",
    413: "The request is too large.",
    415: "The body is not JSON.",
    421: "The page is not known under the name that was asked for.",
    422: "A parameter is unknown or outside its bounds.",
    431: "The head of the request is too large.",
    429: "Too many requests from this address (public pages).",
    503: "The database cannot be read now, too many pages listen, or the node is not ready.",
}


def describe(endpoints: tuple[Endpoint, ...]) -> dict[str, Any]:
    """The OpenAPI document."""
    answers = {e.answer for e in endpoints if e.answer} | {schema.Fault}
    bodies = {e.body for e in endpoints if e.body}
    models = [(m, "serialization") for m in answers] + [(m, "validation") for m in bodies]
    ordered: Any = sorted(models, key=lambda pair: pair[0].__name__)
    _, definitions = models_json_schema(ordered, ref_template=_REFERENCE)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    token = {"type": "http", "scheme": "bearer", "description": "The content of page.token in the node's directory."}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ftis-node page", "version": __version__, "description": "What a node tells about itself."},
        "paths": paths,
        "components": {"schemas": definitions["$defs"], "securitySchemes": {"token": token}},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    about = (endpoint.handler.__doc__ or "").strip()
    assert about, endpoint.path
    status = "202" if endpoint.method == "POST" else "200"
    content = {"schema": _reference(endpoint.answer)} if endpoint.answer else {"schema": {}}
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": about.splitlines()[0],
        "parameters": [*_path_parameters(endpoint.path), *_parameters(endpoint.question)],
        "responses": {
            status: {"description": "As asked.", "content": {endpoint.media: content}},
            **{
                str(code): {
                    "description": _FAULTS[code],
                    "content": {"application/json": {"schema": _reference(schema.Fault)}},
                }
                for code in sorted({413, 421, 422, 429, 431, 503, *endpoint.faults})
            },
        },
    }
    if endpoint.body:
        operation["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": _reference(endpoint.body)}},
        }  # fmt: skip
        operation["security"] = [{"token": []}]
    return operation


def _reference(model: type[schema.Answer] | type[schema.Question]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    if "{number}" not in path:
        return []
    shape = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
    return [{"name": "number", "in": "path", "required": True, "schema": shape}]


def _parameters(question: type[schema.Question]) -> list[dict[str, Any]]:
    document = question.model_json_schema()
    required = set(document.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(shape)}
        for name, shape in document.get("properties", {}).items()
    ]


def _without_null(shape: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: a parameter is given or left out."""
    kept = {key: value for key, value in shape.items() if key not in ("title", "default")}
    choices = [part for part in kept.pop("anyOf", ()) if part != {"type": "null"}]
    return {**kept, **choices[0]} if choices else kept
