"""The harness does to a step what a cluster does to it."""

import json

import pytest
from harness.kfp.backend import run
from harness.kfp.metadata import Unrecordable, given_back
from harness.kfp.steps import Try, drive
from kfp import dsl

from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.launcher.constants import POD

component = dsl.component(base_image="python", install_kfp_package=False)


@component
def produce(kind: str, data: dsl.Output[dsl.Model]) -> str:
    import os
    import pathlib
    import sys

    print(f"model at {data.path}", flush=True)
    pathlib.Path(data.path).write_text("weights")
    data.metadata["flag"] = True
    data.metadata["score"] = 0.5
    data.metadata["classes"] = ["a", "b"]
    data.metadata["words"] = {"a": "b"}
    if kind == "moved":
        data.uri = "pvc://claim/model"
    if kind == "null":
        data.metadata["nothing"] = None
    if kind == "diverged":
        data.metadata["loss"] = float("nan")
    if kind == "raises":
        pathlib.Path(os.environ["KFP_PYTORCH_TERMINATION_LOG"]).write_text("the short form")
        sys.exit("the last words")
    return data.uri


@component
def consume(data: dsl.Input[dsl.Model], items: list = []) -> str:  # noqa: B006
    import json
    import pathlib

    content = pathlib.Path(data.path).read_text()
    return json.dumps({"content": content, "metadata": data.metadata, "items": items})


@component
def linger():
    import os
    import pathlib
    import signal
    import time

    folder = pathlib.Path(os.environ["HARNESS_CONTAINER"])

    def handle(number, frame):
        (folder / "asked").touch()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                print("still here", flush=True)
            except BrokenPipeError:
                (folder / "broken").touch()
            time.sleep(0.01)

    signal.signal(signal.SIGTERM, handle)
    print("at work", flush=True)
    time.sleep(60)


@dsl.pipeline(name="pair")
def pair(kind: str = "plain", size: int = 3):
    made = produce(kind=kind)
    consume(data=made.outputs["data"], items=[f"size={size}", "{'it''s': 1}"])


@dsl.pipeline(name="lingering")
def lingering():
    linger()


@dsl.pipeline(name="stubborn")
def stubborn():
    produce(kind="raises").set_retry(2)


def spec(pipeline):
    return packages.compile_pipeline(pipeline.name, pipeline).spec


def test_an_artifact_is_downloaded_and_its_metadata_come_back_changed(where):
    made = run(spec(pair), where, size=20)
    assert made.succeeded, made.log
    got = json.loads(made.of("consume").parameters["Output"])
    assert got["content"] == "weights"
    assert got["items"] == ["size=20", "{'it''s': 1}"]
    assert got["metadata"] == {
        "display_name": "data",
        "store_session_info": "{}",
        "flag": 1.0,
        "score": 0.5,
        "classes": {"list": ["a", "b"]},
        "words": {"struct": {"a": "b"}},
    }
    uri = made.of("produce").parameters["Output"]
    assert uri.startswith("minio://mlpipeline/")
    assert f"model at {where.folder}/pods/produce-0/minio/mlpipeline/" in made.log


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("null", "unsupported value type NullValue"),
        ("diverged", "failed to unmarshall ExecutorOutput"),
    ],
)
def test_metadata_that_cannot_be_recorded_fail_a_step_whose_program_succeeded(where, kind, words):
    made = run(spec(pair), where, kind=kind)
    assert made.of("produce").code == 1
    assert words in made.log
    assert "consume" not in made.tries


def test_an_input_of_an_unknown_scheme_fails_before_the_program_starts(where):
    made = run(spec(pair), where, kind="moved")
    assert made.of("produce").code == 0
    assert made.of("consume").code == 1
    assert 'unsupported Cloud bucket: "pvc://claim/model"' in made.of("consume").log


def test_a_failed_step_leaves_words_and_no_artifact(where):
    made = run(spec(pair), where, kind="raises")
    failed = made.of("produce")
    assert failed.code == 1
    assert "the last words" in failed.log
    assert failed.message == "the short form"
    assert failed.artifacts == {}
    assert not list((where.folder / "store").rglob("*"))


def test_every_try_of_a_step_has_the_same_inputs_and_uris_and_a_pod_of_its_own(where, api_server):
    made = run(spec(stubborn), where)
    assert len(made.tries["produce"]) == 3
    inputs = [json.loads(p.read_text()) for p in where.folder.glob("pods/*/task.json")]
    uris = {
        given["executor_input"]["outputs"]["artifacts"]["data"]["artifacts"][0]["uri"]
        for given in inputs
    }
    assert len(uris) == 1
    pods = api_server.call(api_server.api.list, POD, "default")
    assert [pod["status"]["phase"] for pod in pods] == ["Failed"] * 3
    assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in pods} == {"Workflow"}


def test_ending_a_step_breaks_its_output_and_kills_it_soon(where, api_server):
    task = drive(spec(lingering), "linger", where)
    ended = Try(task, where, kill_after=3.0).until_it_says("at work").terminate().wait()
    folder = where.folder / "pods" / "linger-0"
    assert ended.code == 143
    assert (folder / "broken").exists()
    (pod,) = api_server.call(api_server.api.list, POD, "default")
    assert "deletionTimestamp" not in pod["metadata"]


def test_draining_a_step_marks_its_pod_first(where, api_server):
    task = drive(spec(lingering), "linger", where)
    ended = Try(task, where).until_it_says("at work").drain().wait()
    assert ended.code == 143
    (pod,) = api_server.call(api_server.api.list, POD, "default")
    assert pod["metadata"]["deletionTimestamp"]


def test_a_node_that_dies_takes_its_step_without_a_word(where):
    task = drive(spec(lingering), "linger", where)
    Try(task, where).until_it_says("at work").kill().wait()
    folder = where.folder / "pods" / "linger-0"
    assert not (folder / "asked").exists()


def test_a_parameter_that_is_null_stops_the_driver(where):
    with pytest.raises(ValueError, match="kind"):
        drive(spec(pair), "produce", where, {"kind": None})


def test_flat_strings_and_finite_numbers_come_back_as_they_were():
    assert given_back({"a": "b", "c": 1.5}, "x").items() >= {"a": "b", "c": 1.5}.items()
    with pytest.raises(Unrecordable):
        given_back({"a": None}, "x")
