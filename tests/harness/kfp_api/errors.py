"""What KFP's API server answers with when it refuses: gRPC's codes as JSON."""

from __future__ import annotations

from typing import Any

# The names of gRPC's codes, each with its number and HTTP status.
INVALID, NOT_FOUND, EXISTS, ABORTED = (3, 400), (5, 404), (6, 409), (10, 409)
PRECONDITION, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = (9, 400), (13, 500), (14, 503), (16, 401)


class ApiError(Exception):
    """An error of the API.

    Args:
        code: One of the codes above.
        message: The whole message.
        detail: The part that the first error said; empty where there are no details.
    """

    def __init__(self, code: tuple[int, int], message: str, detail: str = "") -> None:
        super().__init__(message)
        self.number, self.status = code
        self.detail = detail

    def body(self) -> dict[str, Any]:
        """The answer's body."""
        body: dict[str, Any] = {"code": self.number, "message": str(self)}
        if self.detail:
            kind = "type.googleapis.com/google.rpc.Status"
            body["details"] = [{"@type": kind, "code": self.number, "message": self.detail}]
        return body


class UploadError(ApiError):
    """An error of the two paths that take a file, which answer in another form."""

    def body(self) -> dict[str, Any]:
        """The answer's body."""
        return {"error_message": str(self), "error_details": str(self)}
