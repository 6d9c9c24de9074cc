from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.model_server import ModelServer, digits, serving
from harness.predict_step import Step


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving(digits) as model:
        yield model


@pytest.fixture
def ask(server: ModelServer, tmp_path: Path) -> Step:
    return Step(f"{server.root}/v1/models/digits:predict", tmp_path)
