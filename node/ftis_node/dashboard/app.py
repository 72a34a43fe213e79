"""The page as one ASGI application: addresses, files and the guard in front of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ftis_node.dashboard import api, schema
from ftis_node.dashboard.documents import Served
from ftis_node.dashboard.events import Hub
from ftis_node.dashboard.guard import Guard, Rules
from ftis_node.dashboard.openapi import Endpoint, describe
from ftis_node.dashboard.source import Source

STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

ENDPOINTS = (
    Endpoint("/api/v1/state", api.state, schema.NoQuestion, schema.State),
    Endpoint("/api/v1/nodes", api.nodes, schema.NodesQuestion, schema.Nodes),
    Endpoint("/api/v1/series", api.series, schema.SeriesQuestion, schema.Series, faults=(404,)),
    Endpoint("/api/v1/rollouts", api.rollouts, schema.RolloutsQuestion, schema.Rollouts),
    Endpoint("/api/v1/rollouts/{number}", api.rollout, schema.NoQuestion, schema.RolloutView, faults=(404,)),
    Endpoint("/api/v1/events", api.events, schema.EventsQuestion, schema.Events),
    Endpoint("/api/v1/layout", api.shown, schema.NoQuestion),
    Endpoint("/api/v1/stream", api.stream, schema.NoQuestion, media="text/event-stream", faults=(400,)),
    Endpoint(
        "/api/v1/actions", api.act, schema.NoQuestion, schema.Done, "POST", body=schema.Action,
        faults=(400, 401, 403, 415),
    ),
)  # fmt: skip


def page_app(source: Source, served: Served, *, token: str = "", ask: api.Ask | None = None, rules: Rules) -> Starlette:
    """The application. `app.state.pages.hub.close()` ends its streams."""
    app = Starlette(
        routes=[
            *(Route(e.path, api.answering(e.handler), methods=[e.method]) for e in ENDPOINTS),
            Route("/metrics", api.answering(api.metrics)),
            Route("/livez", api.answering(api.livez)),
            Route("/readyz", api.answering(api.readyz)),
            Route("/api/v1/openapi.json", _openapi),
            Route("/", _file),
            Route("/static/{name}", _file),
        ],
        exception_handlers={HTTPException: _http_fault},
    )
    app.add_middleware(Guard, rules=rules)
    app.state.pages = api.Pages(source, served, Hub(source, served, run_in_threadpool), token, ask)
    return app


@cache
def _description() -> dict[str, Any]:
    return describe(ENDPOINTS)


async def _openapi(request: Request) -> Response:
    return JSONResponse(_description())


@cache
def _static(name: str) -> tuple[bytes, str] | None:
    """A file of the page by its name; only names that are really there, so no path can lead out."""
    files = {path.name: path for path in STATIC.iterdir() if path.suffix in _TYPES}
    return (files[name].read_bytes(), _TYPES[files[name].suffix]) if name in files else None


async def _file(request: Request) -> Response:
    found = _static(request.path_params.get("name", "index.html"))
    if found is None:
        return api.fault(404, "there is no such file")
    return Response(found[0], media_type=found[1], headers={"cache-control": "no-cache"})


async def _http_fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return api.fault(error.status_code, str(error.detail), headers=dict(error.headers or {}))
