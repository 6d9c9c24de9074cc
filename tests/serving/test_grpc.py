"""The protocol over gRPC, with the messages that its own file describes."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from harness.memory import memory_growth

# `import kserve` parses sys.argv.
_given, sys.argv = sys.argv, sys.argv[:1]
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages  # noqa: E402
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc as services  # noqa: E402

sys.argv = _given

IMAGES = np.stack([np.kron(np.eye(4)[q].reshape(1, 2, 2), np.full((2, 2), 16)) for q in (3, 0)])
SHAPE = [2, 1, 4, 4]


@pytest.fixture(scope="module")
def stub(server: Any) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield services.GRPCInferenceServiceStub(channel)


def request(datatype: str = "FP32", raw: bytes | None = None, **changes: Any) -> Any:
    tensor = {"name": "image", "shape": SHAPE, "datatype": datatype} | changes
    contents = [] if raw is None else [raw]
    return messages.ModelInferRequest(
        model_name="digits", inputs=[tensor], raw_input_contents=contents
    )


def as_bytes(dtype: Any) -> bytes:
    return IMAGES.astype(dtype).tobytes()


def contents(field: str, values: Any) -> dict[str, Any]:
    return {"contents": {field: values}}


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [("FP32", np.float32), ("UINT8", np.uint8), ("FP16", np.float16), ("INT64", np.int64)],
)
def test_a_request_with_bytes_is_answered_with_bytes(stub: Any, datatype: str, dtype: Any) -> None:
    response = stub.ModelInfer(request(datatype, as_bytes(dtype)))
    names = [output.name for output in response.outputs]
    assert names == ["class", "label", "score"]
    raw = dict(zip(names, response.raw_output_contents, strict=True))
    assert np.frombuffer(raw["class"], np.int64).tolist() == [3, 0]
    assert raw["label"] == struct.pack("<I", 5) + b"three" + struct.pack("<I", 4) + b"zero"
    assert list(response.outputs[0].shape) == [2]


def test_a_request_with_numbers_is_answered_with_numbers(stub: Any) -> None:
    sent = request(**contents("fp32_contents", IMAGES.ravel()))
    sent.outputs.add(name="class")
    sent.outputs.add(name="logits")
    sent.id = "7"
    response = stub.ModelInfer(sent)
    assert response.id == "7"
    assert list(response.outputs[0].contents.int64_contents) == [3, 0]
    assert list(response.outputs[1].contents.fp32_contents) == [0, 0, 0, 10, 10, 0, 0, 0]


def test_the_best_classes_come_on_request(stub: Any) -> None:
    sent = request(raw=as_bytes(np.float32))
    sent.parameters["top_k"].int64_param = 2
    response = stub.ModelInfer(sent)
    assert list(response.outputs[0].shape) == [2, 2]
    assert np.frombuffer(response.raw_output_contents[0], np.int64).reshape(2, 2)[
        :, 0
    ].tolist() == [
        3,
        0,
    ]


def twice(sent: Any) -> Any:
    """A request that asks twice for the same output."""
    for _ in range(2):
        sent.outputs.add(name="class")
    return sent


NUMBERS = IMAGES.ravel().tolist()
BAD: dict[str, tuple[Any, str]] = {
    "no input": (messages.ModelInferRequest(model_name="digits"), "takes one input named 'image'"),
    "another input": (request(raw=as_bytes(np.float32), name="x"), "takes one input named 'image'"),
    "short": (request(raw=as_bytes(np.float32)[:-1]), "127 bytes of data"),
    "nothing": (request(), "expected 32 elements, found 0"),
    "both": (
        request(raw=as_bytes(np.float32), **contents("fp32_contents", NUMBERS)),
        "there are also raw_input_contents",
    ),
    "another shape": (request(raw=as_bytes(np.float32), shape=[2, 16]), "does not fit the model's"),
    "a huge shape": (request(raw=b"", shape=[2**62, 1, 4, 4]), "0 bytes of data"),
    "a shape of many": (request(raw=b"", shape=[1] * 1_000_000), "inputs[0].shape: [1, 1, "),
    "a type of many letters": (request("é" * 100_000, b""), "inputs[0].datatype: "),
    "an output twice": (twice(request(raw=as_bytes(np.float32))), "has one of them twice"),
    "an unknown type": (request("FP31", b""), "'FP31' is not a number's type"),
    "FP16 as numbers": (request("FP16", **contents("fp32_contents", NUMBERS)), "comes in raw_"),
    "NaN": (request(raw=as_bytes(np.float32)[:-4] + b"\0\0\xc0\x7f"), "nan is not a finite FP32"),
    "300 in UINT8": (
        request("UINT8", **contents("uint_contents", [300] * 32)),
        "300 is not a finite UINT8",
    ),
    "text": (request("BYTES", b"\5\0\0\0ab"), "the bytes end within element 0"),
}


@pytest.mark.parametrize(("sent", "reason"), BAD.values(), ids=BAD)
def test_a_bad_request_is_the_clients_fault_and_says_where(
    stub: Any, sent: Any, reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(sent)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason in raised.value.details()


GOOD = request(raw=as_bytes(np.float32)).SerializeToString()
GARBLED = {
    "cut short": GOOD[:-1],
    "cut within a length": GOOD[:1],
    "a length of many bytes": GOOD + b"\x3a" + b"\xff" * 2000,
    "a field of another kind": GOOD + b"\x38\1",
    "no message": b"\0" * 9,
    "text that is none": GOOD[:2] + b"\xff" + GOOD[3:],
    "many fields": GOOD + b"\x3a\0" * 100_000,
    "nothing": b"",
}


@pytest.mark.parametrize("sent", GARBLED.values(), ids=GARBLED)
def test_bytes_that_are_no_request_are_the_clients_fault(server: Any, sent: bytes) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            call(sent, timeout=30)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert call(GOOD, timeout=30)


SERVICE = "/inference.GRPCInferenceService"
INFER = f"{SERVICE}/ModelInfer"
MEBI = 2**20


def test_a_call_without_a_message_is_the_clients_fault(server: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for method in (INFER, f"{SERVICE}/ModelReady", f"{SERVICE}/ModelMetadata"):
            with pytest.raises(grpc.RpcError) as raised:
                channel.stream_unary(method)(iter(()), timeout=30)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert raised.value.details() == "the call has no message"


def test_what_follows_a_message_is_not_read(server: Any) -> None:
    with (
        memory_growth(server.process.pid) as grown,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        call = channel.stream_unary(INFER)
        for _ in range(20):
            assert call(iter([GOOD, *[bytes(MEBI - 9)] * 5]), timeout=30)
    assert grown() < 32 * MEBI


def test_health_needs_no_message_and_reads_none(server: Any) -> None:
    large = bytes(MEBI - 9)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for name in ("ServerLive", "ServerReady", "ServerMetadata"):
            call = channel.stream_unary(f"{SERVICE}/{name}")
            assert call(iter([large]), timeout=30) == call(iter(()), timeout=30) != b""


def test_a_method_that_is_not_served_is_unimplemented(server: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for name in ("RepositoryModelLoad", "Nothing"):
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(f"{SERVICE}/{name}")(b"", timeout=30)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_name_that_is_no_message_is_the_clients_fault(server: Any) -> None:
    with (
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
        pytest.raises(grpc.RpcError) as raised,
    ):
        channel.unary_unary(f"{SERVICE}/ModelReady")(b"\xff", timeout=30)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the request is no ModelReadyRequest" in raised.value.details()


def test_a_compressed_message_may_be_no_larger_than_another(server: Any) -> None:
    coding = grpc.Compression.Gzip
    with (
        memory_growth(server.process.pid) as grown,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        call = channel.unary_unary(INFER)
        assert call(GOOD, timeout=30, compression=coding)
        with pytest.raises(grpc.RpcError) as raised:
            call(bytes(50 * MEBI), timeout=60, compression=coding)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert grown() < 32 * MEBI


def test_messages_that_are_refused_are_not_kept(server: Any) -> None:
    sent = GOOD + b"\x3a" + varint(MEBI - 1000) + bytes(MEBI - 1000)
    with (
        memory_growth(server.process.pid) as grown,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        call = channel.unary_unary(INFER)
        for _ in range(50):
            with pytest.raises(grpc.RpcError) as raised:
                call(sent, timeout=30)
            assert "raw_input_contents: there are 2" in raised.value.details()
    assert grown() < 24 * MEBI


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def test_another_models_name_is_not_found(stub: Any) -> None:
    for call, sent in (
        (stub.ModelInfer, messages.ModelInferRequest(model_name="other")),
        (stub.ModelMetadata, messages.ModelMetadataRequest(name="other")),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            call(sent)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_and_metadata_are_those_of_http(stub: Any, server: Any) -> None:
    assert stub.ServerLive(messages.ServerLiveRequest()).live
    assert stub.ServerReady(messages.ServerReadyRequest()).ready
    assert stub.ModelReady(messages.ModelReadyRequest(name="digits")).ready
    metadata = stub.ModelMetadata(messages.ModelMetadataRequest(name="digits"))
    by_http = server.http.request("GET", "/v2/models/digits").json()
    for tensors, others in ((metadata.inputs, "inputs"), (metadata.outputs, "outputs")):
        found = [{"name": t.name, "datatype": t.datatype, "shape": [*t.shape]} for t in tensors]
        assert found == by_http[others]
