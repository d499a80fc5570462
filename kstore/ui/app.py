"""`application`: the routes of the pages, and the answer to an error in one of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from kstore.base import optional
from kstore.errors import KStoreError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kstore.ui.access import Access, App, Guarded
from kstore.ui.directory_pages import DirectoryPages
from kstore.ui.live_events import LiveEvents
from kstore.ui.page_templates import USER, Templates, assets
from kstore.ui.partition_pages import PartitionPages
from kstore.ui.plan_form import PlanPage
from kstore.ui.query_values import BadRequestError, NotFoundError
from kstore.ui.viewed_store import ViewedStore

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["application"]

Endpoint = Callable[["Request"], "Response"]

_NOT_THERE = (NotFoundError, UnknownTopicOrPartitionError, OffsetOutOfRangeError)


def application(viewed: ViewedStore, access: Access, *, live: LiveEvents | None = None) -> App:
    """Return the ASGI application that shows a store to requests that have `access`.

    Raises `ConfigError` if a library is missing.
    """
    applications = optional.starlette(USER, "starlette.applications")
    routing = optional.starlette(USER, "starlette.routing")
    templates = Templates()
    live = live or LiveEvents(viewed)
    directory = DirectoryPages(viewed, templates)
    partition = PartitionPages(viewed, templates)
    routes = [
        routing.Route("/", directory.listing),
        routing.Route("/groups", directory.groups),
        routing.Route("/disk", directory.disk),
        routing.Route("/plan", PlanPage(viewed, templates).show),
        routing.Route("/live/directory", live.directory),
        routing.Route("/live/disk", live.disk),
        routing.Route("/live/partition/{topic}/{number}", live.partition),
        routing.Route("/partition/{topic}/{number}", partition.overview),
        routing.Route("/partition/{topic}/{number}/records", partition.records),
        routing.Route("/partition/{topic}/{number}/record", partition.record),
        routing.Route("/partition/{topic}/{number}/batches", partition.batches),
        routing.Route("/partition/{topic}/{number}/producers", partition.producers),
        routing.Route("/partition/{topic}/{number}/check", partition.check),
        *(routing.Route(f"/static/{name}", _static(data, kind)) for name, (data, kind) in assets().items()),
    ]
    handlers = {KStoreError: _error_page(templates), 404: _not_found(templates), 500: _bug_page(templates)}
    pages = applications.Starlette(routes=routes, exception_handlers=handlers)

    def refusal_page(status: int, reason: str) -> bytes:
        return templates.render("refused", status=status, reason=reason)

    return Guarded(pages, access, refusal_page)


def _static(data: bytes, kind: str) -> Endpoint:
    response = optional.starlette(USER, "starlette.responses").Response

    def serve(request: Request) -> Response:
        return response(data, media_type=kind)  # type: ignore[no-any-return]

    return serve


def _page(templates: Templates, status: int, title: str, message: str, trace: str = "") -> Response:
    body = templates.render("error", title=title, message=message, trace=trace, here="")
    return optional.starlette(USER, "starlette.responses").HTMLResponse(body, status)  # type: ignore[no-any-return]


def _error_page(templates: Templates) -> Callable[[Request, KStoreError], Response]:
    def answer(request: Request, error: KStoreError) -> Response:
        if isinstance(error, BadRequestError):
            return _page(templates, 400, "This request is not understood", str(error))
        if isinstance(error, _NOT_THERE):
            return _page(templates, 404, "Not there", str(error))
        return _page(templates, 500, "This cannot be read", f"{type(error).__name__}: {error}")

    return answer


def _not_found(templates: Templates) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        return _page(templates, 404, "Not there", "There is no page at this address.")

    return answer


def _bug_page(templates: Templates) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        trace = "".join(traceback.format_exception(error))
        return _page(templates, 500, "A fault of kstore ui", f"{type(error).__name__}: {error}", trace)

    return answer
