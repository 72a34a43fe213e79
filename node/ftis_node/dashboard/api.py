"""The addresses of the page: what may be asked, how a question is read, and what becomes of one without an answer.

This is the edge of the web server: the one place in the page that catches everything, so that a mistake here ends as
one answer with status 500 and one line in the log.
"""

from __future__ import annotations

import functools
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
from pydantic import ValidationError
from sse_starlette.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ftis_node.dashboard import documents, listings, schema
from ftis_node.dashboard.documents import Served
from ftis_node.dashboard.events import Hub, Mark, TooManyListeners
from ftis_node.dashboard.exposition import CONTENT_TYPE, exposition
from ftis_node.dashboard.guard import BodyTooLarge
from ftis_node.dashboard.layout import layout
from ftis_node.dashboard.source import DataUnavailable, Source

log = logging.getLogger(__name__)

#: a message that a reader does not take within this time ends his stream
SEND_SECONDS = 10.0
Ask = Callable[[str, str], int]
Handler = Callable[["Pages", Request], Awaitable[Response]]
Q = TypeVar("Q", bound=schema.Question)


class Refused(Exception):
    """A question that is not answered; `status` is the HTTP status."""

    def __init__(self, status: int, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.status, self.error, self.hint = status, error, hint


@dataclass(frozen=True, slots=True)
class Pages:
    """Everything that answers need. `ask` hands an action to the node and returns its number; `token` guards it."""

    source: Source
    served: Served
    hub: Hub
    token: str = ""
    ask: Ask | None = None


def answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """A handler as an endpoint: whatever it raises becomes an answer that says why, without a trace."""

    @functools.wraps(handler)
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request.app.state.pages, request)
        except Refused as no:
            return fault(no.status, no.error, no.hint)
        except ValidationError as error:
            return fault(422, _told(error), "See /api/v1/openapi.json for what may be asked.")
        except listings.UnknownName as error:
            return fault(404, str(error), "It may have been dropped: only the newest are kept.")
        except DataUnavailable as error:
            return fault(503, f"the node's database cannot be read: {error}", "Try again.", {"retry-after": "1"})
        except BodyTooLarge:
            return fault(413, "the request is too large", "Send less.")
        except (HTTPException, ClientDisconnect):
            raise
        except Exception:
            log.exception("the page failed at %s", request.url.path)
            return fault(500, "the page made a mistake", "Please report it with the node's log.")

    return endpoint


def fault(status: int, error: str, hint: str = "", headers: dict[str, str] | None = None) -> Response:
    """An answer that says why there is none."""
    return _json(schema.Fault(error=error, hint=hint), status, headers)


def _json(answer: schema.Answer, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    extra = {"cache-control": "no-store", **(headers or {})}
    return Response(answer.model_dump_json(), status, headers=extra, media_type="application/json")


def _told(error: ValidationError) -> str:
    """What is wrong with a question, without repeating what it said."""
    parts = (f"{'.'.join(map(str, e['loc']))[:50] or 'request'}: {e['msg']}" for e in error.errors()[:5])
    return "; ".join(parts)


def question(request: Request, model: type[Q]) -> Q:
    """The parameters of a request; raises ValidationError."""
    given: dict[str, Any] = {}
    for key in request.query_params:
        values = request.query_params.getlist(key)
        many = key == "name" and "name" in model.model_fields
        if not many and len(values) > 1:
            raise Refused(422, f"{key[:50]} is given more than once")
        given[key] = values if many else values[0]
    return model.model_validate(given)


async def state(pages: Pages, request: Request) -> Response:
    """Strip, node, gates, counts, traffic and bottleneck."""
    question(request, schema.NoQuestion)
    ask = functools.partial(pages.source.memo, "state", lambda store: documents.state(store, pages.served))
    return _json(await run_in_threadpool(ask))


async def nodes(pages: Pages, request: Request) -> Response:
    """Every node whose card was seen, and how it and this node count each other."""
    asked = question(request, schema.NodesQuestion)
    ask = functools.partial(pages.source.memo, asked, lambda store: documents.nodes(store, asked))
    return _json(await run_in_threadpool(ask))


async def series(pages: Pages, request: Request) -> Response:
    """Curves, thinned out to the points asked for."""
    asked = question(request, schema.SeriesQuestion)
    ask = functools.partial(pages.source.memo, asked, lambda store: listings.series(store, asked))
    return _json(await run_in_threadpool(ask))


async def rollouts(pages: Pages, request: Request) -> Response:
    """Groups with their texts, newest first."""
    asked = question(request, schema.RolloutsQuestion)
    return _json(await run_in_threadpool(pages.source.read, lambda store: listings.rollout_page(store, asked)))


async def rollout(pages: Pages, request: Request) -> Response:
    """One group."""
    question(request, schema.NoQuestion)
    text = request.path_params["number"]
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise Refused(404, "a group is named by its number")
    return _json(await run_in_threadpool(pages.source.read, lambda store: listings.one_rollout(store, int(text))))


async def events(pages: Pages, request: Request) -> Response:
    """The event log, newest first."""
    asked = question(request, schema.EventsQuestion)
    return _json(await run_in_threadpool(pages.source.read, lambda store: listings.event_page(store, asked)))


async def stream(pages: Pages, request: Request) -> Response:
    """Live messages; see `events.Hub`."""
    question(request, schema.NoQuestion)
    told = request.headers.get("last-event-id", "")
    mark = Mark.parse(told) if told else None
    if told and mark is None:
        raise Refused(400, "Last-Event-ID is none of this page's", "Leave it out to begin anew.")
    try:
        messages = await pages.hub.listen(mark)
    except TooManyListeners:
        raise Refused(503, "too many pages listen already", "Ask /api/v1/state now and then instead.") from None
    return EventSourceResponse(messages, ping=0, send_timeout=SEND_SECONDS)


async def shown(pages: Pages, request: Request) -> Response:
    """Sections, curves and the meaning of every word on the page."""
    question(request, schema.NoQuestion)
    return JSONResponse(layout(pages.served.role))


async def metrics(pages: Pages, request: Request) -> Response:
    """For Prometheus."""
    text = await run_in_threadpool(pages.source.read, lambda store: exposition(store, time.time()))
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def livez(pages: Pages, request: Request) -> Response:
    """The page answers."""
    return JSONResponse({"alive": True})


async def readyz(pages: Pages, request: Request) -> Response:
    """200 while no gate fails, else 503 with the gates that do."""
    ask = functools.partial(pages.source.memo, "state", lambda store: documents.state(store, pages.served))
    found = await run_in_threadpool(ask)
    failing = [gate.model_dump() for gate in found.gates if gate.verdict == "fail"]
    return JSONResponse({"ready": not failing, "failing": failing}, 503 if failing else 200)


async def act(pages: Pages, request: Request) -> Response:
    """Put an action down for the node to take up."""
    if pages.ask is None or not pages.token:
        raise Refused(403, "this page only shows", "Ask on the node's own page, or with ftis-node on its machine.")
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), pages.token.encode()):
        raise Refused(401, "the token is missing or wrong", "It is in the file page.token in the node's directory.")
    if not _same_origin(request):
        raise Refused(403, "the request comes from another page")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "an action is sent as application/json")
    try:
        action = schema.Action.model_validate(json.loads(await request.body()))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ValidationError):
            raise
        raise Refused(400, "the body is not JSON") from None
    if (action.kind in ("pause", "resume")) == bool(action.node_id):
        raise Refused(422, f"{action.kind} takes {'no' if action.node_id else 'a'} node_id")
    with anyio.fail_after(5):
        number = await run_in_threadpool(pages.ask, action.kind, action.node_id)
    return _json(schema.Done(id=number), 202)


def _same_origin(request: Request) -> bool:
    """Whether the page that sent this is ours. Programs send neither header, and need the token all the same."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    return origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
