"""The artifacts that KFP hands over to a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Artifact(Protocol):
    """What the launcher needs of a KFP artifact."""

    uri: str  # different for every step
    path: str  # where its content is
    metadata: dict[str, Any]


def write(artifact: Artifact, content: str) -> None:
    """Write an artifact's content."""
    target = Path(artifact.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content, encoding="utf-8", errors="replace")
