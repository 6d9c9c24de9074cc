"""What a server that knows KServe's own schema of the kind does with a service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.kubernetes.api_errors import Refused
from kfp_pytorch.local.apiserver.registry import Registry
from kfp_pytorch.local.apiserver.store.api import Api

CRD = Path(__file__).parents[4] / "shared/crds/inferenceservices.json"
pytestmark = pytest.mark.skipif(not CRD.exists(), reason="KServe's schema is not there")

Start = Callable[..., Any]
Until = Callable[..., Any]
KServe = Any


@pytest.fixture
def api() -> Api:
    return Api(Registry([json.loads(CRD.read_text())]))


def patched(field: str) -> dict[str, Any]:
    return {"service_patch": {"spec": {"predictor": {field: 1}}}}


def test_a_field_that_the_kind_does_not_have_is_refused_and_not_dropped(
    kserve: KServe, start: Start, until: Until
) -> None:
    words = start(**patched("containerConcurency")).failed(Refused)
    assert 'unknown field "spec.predictor.containerConcurency"' in words
    assert "Look for a typing error where the inputs hold Kubernetes' own fields" in words
    assert kserve.service() is None
    step = start(**patched("containerConcurrency"))
    until(kserve.service)
    kserve.serves()
    step.succeeded()
    before = kserve.service()["metadata"]["resourceVersion"]
    assert "containerConcurency" in start(**patched("containerConcurency")).failed(Refused)
    assert kserve.service()["metadata"]["resourceVersion"] == before
