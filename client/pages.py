"""KFP's lists, from the first page to the last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from kfp_pytorch.client.connection import Connection

# What a page has at most: backend/src/apiserver/list/list.go.
_MOST = 200


def equals(**fields: str) -> str:
    """The filter for entries whose fields have these values."""
    predicates = [
        {"operation": "EQUALS", "key": key, "string_value": value} for key, value in fields.items()
    ]
    return json.dumps({"predicates": predicates})


def every(
    connection: Connection,
    method: Callable[..., Any],
    field: str,
    *,
    filter: str = "",  # noqa: A002 (the API's own name)
    most: int = 0,
    **query: Any,
) -> Iterator[Any]:
    """The entries of a list, page by page.

    `field`: where an answer has them. `most`: how many, 0 for all. `query`: as the method takes it.
    """
    token, given = "", 0
    size = min(most, _MOST) or _MOST
    while True:
        page: dict[str, Any] = {"page_token": token, "page_size": size, **query}
        if filter:
            page["filter"] = filter
        answer = connection.call(method, **page)
        for each in getattr(answer, field) or []:
            yield each
            given += 1
            if given == most:
                return
        token = answer.next_page_token or ""
        if not token:
            return
