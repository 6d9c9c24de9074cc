"""The routes of the API, as an ASGI application."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver.errors import ApiError, Object, bad_request
from kfp_pytorch.local.apiserver.http import discovery, logs, reads, reviews, watch, writes
from kfp_pytorch.local.apiserver.http.paths import Target, target
from kfp_pytorch.local.apiserver.http.streaming import Stream
from kfp_pytorch.local.apiserver.store.api import Api, Change
from kfp_pytorch.local.apiserver.store.selectors import selector

Endpoint = Callable[[Request], Awaitable[Response]]

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
# What a real server reads at most of one object.
_BODY_LIMIT = 3 * 1024 * 1024
_NO_SUCH_PAGE = "404 page not found\n"


@dataclass(frozen=True)
class Settings:
    """What the server decides and no client can."""

    log_root: Path  # the folder of the containers' logs
    bookmark_every_s: float = 60.0  # seconds between two bookmarks of a watch


def app(api: Api, log_root: Path, *, bookmark_every_s: float = 60.0) -> Starlette:
    """The API as an ASGI application."""
    settings = Settings(log_root, bookmark_every_s)

    async def objects(request: Request) -> Response:
        return await _answered(api, settings, request)

    routes = [*_discovery_routes(api), Route("/{path:path}", objects, methods=_METHODS)]
    handlers = {ApiError: _failed, HTTPException: _no_such_page, Exception: _broken}
    return Starlette(routes=routes, exception_handlers=handlers)


def reply(obj: Object, status: int = 200, warnings: list[str] | None = None) -> Response:
    """A JSON answer."""
    text = json.dumps(obj, separators=(",", ":"), ensure_ascii=False)
    response = Response(text.encode(), status, media_type="application/json")
    for warning in warnings or []:
        response.headers.append("Warning", f"299 - {json.dumps(warning)}")
    return response


async def _failed(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    response = reply(error.status(), error.code)
    if "retryAfterSeconds" in error.details:
        response.headers["Retry-After"] = str(error.details["retryAfterSeconds"])
    return response


async def _broken(_: Request, error: Exception) -> Response:
    message = f"Internal error occurred: {type(error).__name__}: {error}"
    return reply(ApiError(500, "InternalError", message).status(), 500)


async def _no_such_page(_: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 404
    return PlainTextResponse(_NO_SUCH_PAGE, code)


def _discovery_routes(api: Api) -> list[Route]:
    registry = api.registry
    known: dict[str, Callable[[dict[str, str]], Object | None]] = {
        "/api": lambda _: discovery.api_versions(),
        "/apis": lambda _: discovery.groups(registry),
        "/apis/{group}": lambda path: discovery.group(registry, path["group"]),
        "/api/{version}": lambda path: discovery.resources(registry, "", **path),
        "/apis/{group}/{version}": lambda path: discovery.resources(registry, **path),
        "/version": lambda _: discovery.VERSION,
        "/openapi/v3": lambda _: discovery.openapi_root(registry),
        "/openapi/v3/api/{version}": lambda path: discovery.openapi(registry, "", **path),
        "/openapi/v3/apis/{group}/{version}": lambda path: discovery.openapi(registry, **path),
    }
    return [
        *(Route(path, _discovery_endpoint(find)) for path, find in known.items()),
        *(Route(path, _healthy) for path in ("/healthz", "/livez", "/readyz")),
        *(
            Route(f"/apis/{group}/v1/{plural}", _review(api, group, plural), methods=["POST"])
            for group, plural in reviews.REVIEWS
        ),
    ]


def _discovery_endpoint(find: Callable[[dict[str, str]], Object | None]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        found = find(request.path_params)
        return PlainTextResponse(_NO_SUCH_PAGE, 404) if found is None else reply(found)

    return endpoint


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok")


def _review(api: Api, group: str, plural: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        sent = _sent(request, await request.body())
        authorization = request.headers.get("authorization", "")
        return reply(writes.review(api, group, plural, sent, authorization), 201)

    return endpoint


def _sent(request: Request, body: bytes) -> writes.Sent:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip()
    return writes.Sent(body, media_type, request.query_params)


async def _answered(api: Api, settings: Settings, request: Request) -> Response:
    found = target(api.registry, request.url.path)
    if found is None:
        return PlainTextResponse(_NO_SUCH_PAGE, 404)
    if request.method == "GET":
        return _read(api, settings, found, request)
    body = await request.body()
    if len(body) > _BODY_LIMIT:
        message = f"Request entity too large: limit is {_BODY_LIMIT}"
        raise ApiError(413, "RequestEntityTooLarge", message)
    return _changed(api, found, request, body)


def _changed(api: Api, found: Target, request: Request, body: bytes) -> Response:
    try:
        done = writes.handle(api, found, request.method, _sent(request, body))
    except RecursionError:
        raise bad_request("exceeded max depth") from None
    if done.status < 400 and not done.is_status:
        form = reads.shape(request.headers.get("accept", ""), request.query_params)
        return reply(reads.shaped(api, found, done.object, form), done.status, done.warnings)
    return reply(done.object, done.status, done.warnings)


def _read(api: Api, settings: Settings, found: Target, request: Request) -> Response:
    query = request.query_params
    form = reads.shape(request.headers.get("accept", ""), query)
    if found.subresource == "log" and found.resource.kind == POD:
        return _log(api, settings, found, request)
    if found.subresource not in ("", "status"):
        return PlainTextResponse(_NO_SUCH_PAGE, 404)
    if found.name:
        return reply(reads.one(api, found, form))
    if reads.yes(query, "watch"):
        return _watch(api, settings, found, request, form)
    return reply(reads.many(api, found, query, form))


def _watch(
    api: Api, settings: Settings, found: Target, request: Request, form: reads.Shape
) -> Response:
    query = request.query_params
    match = selector(found.resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    initial = reads.yes(query, "sendInitialEvents")
    options = watch.Options(
        since=None if initial else reads.revision(query.get("resourceVersion", "")),
        timeout_s=reads.number(query, "timeoutSeconds"),
        bookmarks=reads.yes(query, "allowWatchBookmarks"),
        bookmark_every_s=settings.bookmark_every_s,
        initial=initial,
    )

    def shown(change: Change) -> str:
        return json.dumps(reads.shaped(api, found, change.object, form))

    lines = watch.lines(api, found, match, options, shown if form.form else None)
    return Stream(lines, "application/json")


def _log(api: Api, settings: Settings, found: Target, request: Request) -> Response:
    query = request.query_params
    options = logs.Options(
        container=query.get("container", ""),
        follow=reads.yes(query, "follow"),
        previous=reads.yes(query, "previous"),
        timestamps=reads.yes(query, "timestamps"),
        since=logs.since(api, query.get("sinceSeconds", ""), query.get("sinceTime", "")),
        tail=reads.number(query, "tailLines"),
        limit=reads.number(query, "limitBytes"),
    )
    log = logs.source(settings.log_root, api.existing(*found.key), options)
    if log is None:
        return Response(status_code=204)
    return Stream(logs.read(api, log, options), "text/plain")
