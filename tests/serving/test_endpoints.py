"""What a predictor answers beside predictions: metadata, metrics, events, and what it has not."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

Server = Any
V1 = "/v1/models/digits:predict"
V2 = "/v2/models/digits/infer"
# The third quarter is the brightest.
NESTED = [[[[0, 0, 0, 0], [0, 0, 0, 0], [16, 16, 0, 0], [16, 16, 0, 0]]]]


def test_nobody_unloads_the_model_over_http(server: Server) -> None:
    assert server.post("/v2/repository/models/digits/unload", {}).status == 404
    assert server.http.request("GET", "/v2/models/digits/ready").status == 200


def test_another_models_name_is_not_found(server: Server) -> None:
    response = server.post("/v1/models/other:predict", {"instances": NESTED})
    assert response.status == 404
    assert "other" in response.json()["error"]


def test_the_metadata_describes_the_tensors(server: Server) -> None:
    metadata = server.http.request("GET", "/v2/models/digits").json()
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 4, 4]}]
    assert [t["name"] for t in metadata["outputs"]] == ["class", "label", "score", "logits"]


def test_the_metrics_count_requests_by_protocol_and_status(server: Server) -> None:
    def counted(protocol: str, status: int) -> float:
        page = server.http.request("GET", "/metrics").data.decode()
        labels = f'{{model_name="digits",protocol="{protocol}",status="{status}"}}'
        line = f"kfp_pytorch_requests_total{labels} "
        found = [each.removeprefix(line) for each in page.splitlines() if each.startswith(line)]
        return float(found[0]) if found else 0.0

    before = [counted("v1", 200), counted("v2", 400)]
    server.post(V1, {"instances": NESTED})
    server.post(V2, {})
    assert [counted("v1", 200), counted("v2", 400)] == [before[0] + 1, before[1] + 1]
    page = server.http.request("GET", "/metrics").data.decode()
    for name in ("request_seconds_bucket", "batch_rows_sum", "batch_seconds_sum"):
        assert f"kfp_pytorch_{name}{{" in page
    assert 'kfp_pytorch_queue_requests{model_name="digits"} 0.0' in page


def test_the_openapi_document_has_this_models_bodies(server: Server) -> None:
    document = server.http.request("GET", "/openapi.json").json()
    paths = document["paths"]
    assert not [path for path in paths if "/repository/" in path]
    body = paths["/v1/models/{model_name}:predict"]["post"]["requestBody"]["content"]
    instances = body["application/json"]["schema"]["properties"]["instances"]
    nested, file = instances["items"]["anyOf"]
    sizes = []
    while nested["type"] == "array":
        sizes.append((nested["minItems"], nested["maxItems"]))
        nested = nested["items"]
    assert sizes == [(1, 1), (4, 4), (4, 4)]
    assert file["required"] == ["b64"]


@pytest.mark.parametrize(
    "path", ["/v2/models/digits/versions/2/ready", "/v2/models/digits?model_version=2"]
)
def test_a_version_that_the_model_does_not_have_is_not_found(server: Server, path: str) -> None:
    assert server.http.request("GET", path).status == 404


def test_a_cloud_event_is_answered_as_one(server: Server) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "test", "type": "predict"}
    event["time"] = "2026-01-01T00:00:00Z"
    response = server.post(
        V1,
        event | {"data": {"instances": NESTED}},
        content_type="application/cloudevents+json",
    )
    assert response.status == 200, response.data
    assert response.json()["data"]["predictions"][0]["class"] == 2
