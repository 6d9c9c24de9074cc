"""The HTTP answers to errors, each with a status and a reason, and never a traceback."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kfp_pytorch.serving.middleware import RETRY
from kfp_pytorch.serving.tensors import BadRequest

logger = logging.getLogger("kserve")


async def _bad_request(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 400)


async def _memory_full(_: Request, error: Exception) -> JSONResponse:
    logger.warning("memory is full: %s", error)
    reason = "the predictor's memory is full; send fewer instances in a request, or try again later"
    return JSONResponse({"error": reason}, 503, RETRY)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type checker
    # For a body that is not text FastAPI's detail only says that there was an error.
    unread = error.status_code == 400 and error.__cause__ is not None
    reason = f"body: not JSON: {error.__cause__}" if unread else error.detail
    return JSONResponse({"error": reason}, error.status_code, error.headers)


async def _invalid_v2(_: Request, error: Exception) -> JSONResponse:
    """Names the field that the V2 request's own checks refused."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - for the type checker
    # The body may also be bytes; the reasons why it is not bytes are left out.
    reasons = [e for e in error.errors() if "bytes" not in e["loc"]] or list(error.errors())
    if reasons[0]["type"] == "json_invalid":
        return JSONResponse({"error": f"body: not JSON: {reasons[0]['ctx']['error']}"}, 400)
    place = ".".join(str(part) for part in reasons[0]["loc"] if part != "InferenceRequest")
    return JSONResponse({"error": f"{place}: {reasons[0]['msg']}"}, 400)


def add_error_answers(application: FastAPI) -> None:
    """Answers each kind of error with its status and one JSON object `{"error": reason}`."""
    application.add_exception_handler(BadRequest, _bad_request)
    # No client reads this answer; without it a closed connection is logged as an error.
    application.add_exception_handler(ClientDisconnect, _bad_request)
    application.add_exception_handler(MemoryError, _memory_full)
    application.add_exception_handler(RequestValidationError, _invalid_v2)
    application.add_exception_handler(HTTPException, _http_error)
