"""The answers of KServe's own endpoints to errors: a status and a reason, and never a traceback."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from kserve.errors import ModelNotFound
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kfp_pytorch.serving.errors import (
    RETRY,
    BadRequest,
    DeadlineExceeded,
    ModelFault,
    Overloaded,
    refusal,
)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    told = refusal(error)
    headers = RETRY if told.status == 503 else None
    return JSONResponse({"error": told.reason}, told.status, headers)


async def _not_there(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 404)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type checker
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def add_error_answers(application: FastAPI) -> None:
    """Answers each kind of error with its status and one JSON object `{"error": reason}`."""
    # No client reads the answer to ClientDisconnect; without it an error would be logged.
    for kind in (
        BadRequest,
        Overloaded,
        DeadlineExceeded,
        ModelFault,
        MemoryError,
        ClientDisconnect,
    ):
        application.add_exception_handler(kind, _refused)
    # Such as a version of the model: it has none.
    application.add_exception_handler(NotImplementedError, _not_there)
    application.add_exception_handler(ModelNotFound, _not_there)
    application.add_exception_handler(HTTPException, _http_error)
