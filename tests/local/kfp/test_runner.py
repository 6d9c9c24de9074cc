"""kfp.local in a child process: what it tells, what a step is given, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from typing import NamedTuple, Optional

import pytest
import yaml
from harness.command import left_of
from kfp import compiler, dsl

from kfp_pytorch.local.kfp import runner, step
from kfp_pytorch.local.kfp.runner import PIPELINE_FILE, RUN_FILE, local_form
from kfp_pytorch.local.processes import guard, guarded

component = dsl.component(base_image="python", install_kfp_package=False)
# KFP does not know `str | None`.
Word = Optional[str]  # noqa: UP045


@component
def speak(text: str, page: dsl.Output[dsl.Artifact]) -> str:
    import os
    import pathlib

    print(f"it says {text}", flush=True)
    pathlib.Path(os.environ["KFP_PYTORCH_TERMINATION_LOG"]).write_text("said")
    page.metadata["length"] = len(text)
    return page.uri


@component
def fill(values: dict, items: list) -> dict:
    return {"values": values, "items": items}


@component
def order(given: dict, constant: dict) -> list:
    return [list(given), list(given["m"][0]), list(constant)]


@dsl.component(
    base_image="python",
    install_kfp_package=False,
    task_config_passthroughs=[
        dsl.TaskConfigField.RESOURCES,
        dsl.TaskConfigPassthrough(dsl.TaskConfigField.ENV, apply_to_task=True),
    ],
)
def configured(task_config: dsl.TaskConfig) -> dict:
    import os

    return {"env": task_config.env, "resources": task_config.resources, "own": os.environ["WORD"]}


@component
def measure(n: int) -> NamedTuple("Outputs", value=float, storage_uri=str):
    return (n / 2, f"pvc://claim/{n}")


@component
def fail():
    raise ValueError("it cannot be")


@component
def sleep(marker: str):
    import pathlib
    import time

    pathlib.Path(marker).touch()
    print("asleep", flush=True)
    time.sleep(60)


@dsl.pipeline(name="speaking")
def speaking(text: str = "python3 $HOME 'x' ✨"):
    speak(text=text)
    speak(text=dsl.PIPELINE_JOB_ID_PLACEHOLDER)


@dsl.pipeline(name="arriving")
def arriving(
    given: dict, memory: str = "2Gi", epochs: int = 20, rate: float = 1e-5, word: str = "a"
):
    fill(
        values={"name": dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER},
        items=[dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER],
    )
    speak(text=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER)
    fill(values={"epochs": epochs, "rate": rate, "word": word}, items=[f"--epochs={epochs}"])
    order(given=given, constant={"lr": 1, "epochs": 2})
    task = configured().set_env_variable("WORD", 'say "{{x}}" ✨').set_memory_limit(memory)
    task.set_env_variable("EMPTY", "").set_cpu_request("500m")
    task.set_accelerator_type("amd.com/gpu").set_accelerator_limit(2)


@dsl.pipeline(name="judging")
def judging():
    outer = measure(n=1)
    with dsl.ParallelFor([1, 2]) as n:
        inner = measure(n=n)
        with dsl.If(inner.outputs["value"] > 0.6):
            speak(text="good")
            with dsl.If(outer.outputs["storage_uri"] == "pvc://claim/1"):
                speak(text="nested")
            with dsl.If(inner.outputs["value"] >= 1):  # a whole number: double(1)
                speak(text="whole")
        with dsl.Else():
            speak(text="bad")


@component
def told(count: int = 7, note: Optional[str] = "own") -> str:  # noqa: UP045
    return f"{count} {note}"


@dsl.pipeline
def nested(count: int = 5, note: Word = None):
    told(count=count, note=note)


@dsl.pipeline(name="nesting")
def nesting(count: int = 10, note: Word = None, other: Word = None):
    nested()
    nested(note="given", count=count)
    with dsl.If(count == 10):
        nested(note=other)


@component
def swell() -> str:
    return "x" * 140_000


@dsl.pipeline(name="swelling")
def swelling():
    speak(text=swell().output)


@component
def locate(path: str) -> str:
    return path


@dsl.pipeline(name="locating")
def locating(path: str):
    fill(values={"whole": "x"}, items=["--path", f"in {locate(path=path).output}"])


@dsl.pipeline(name="failing")
def failing():
    first = fail()
    speak(text="never").after(first)


@dsl.pipeline(name="sleep")  # as its component
def sleeping(marker: str):
    first = sleep(marker=marker).set_retry(2)
    speak(text="never").after(first)


def prepare(folder, pipeline, arguments=None):
    folder.mkdir(parents=True, exist_ok=True)
    compiled = folder / "compiled.yaml"
    compiler.Compiler().compile(pipeline, str(compiled))
    spec = local_form(yaml.safe_load(compiled.read_text()), folder.name)
    (folder / PIPELINE_FILE).write_text(json.dumps(spec))
    run = {"name": folder.name, "id": "the-id", "pipeline": "p", "arguments": arguments or {}}
    (folder / RUN_FILE).write_text(json.dumps(run))


def start(folder):
    setting = {"run_id": "the-id", "folder": str(folder)}
    return guarded.popen(
        [sys.executable, "-m", "kfp_pytorch.local.kfp.runner", str(folder)],
        env={**os.environ, step.SETTING_ENV: json.dumps(setting)},
        stdout=subprocess.PIPE,
    )


def events_of(output):
    marked = [line.partition(step.EVENT_MARK)[2] for line in output.splitlines()]
    return [json.loads(text) for text in marked if text]


def run(folder, pipeline, arguments=None):
    prepare(folder, pipeline, arguments)
    with start(folder) as process:
        output, _ = process.communicate()
    return process.returncode, events_of(output)


def ended(events):
    """The steps' ends, by step: kfp.local runs independent tasks in any order."""
    return sorted((e for e in events if e["event"] == "ended"), key=lambda e: e["step"])


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A run, and the events of it and of the same once more."""
    folder = tmp_path_factory.mktemp("spoken") / "a-run"
    runs = [run(folder, speaking) for _ in range(2)]
    assert [code for code, _ in runs] == [0, 0]
    return folder, [events for _, events in runs]


@pytest.fixture(scope="module")
def arrived(tmp_path_factory):
    """The lines of a run, and what each of its steps was given, as that step returned it."""
    given = {"z": 1, "m": [{"b": 1, "a": 2}], "A": 3}
    folder = tmp_path_factory.mktemp("arrived") / "a-run"
    code, events = run(folder, arriving, {"memory": "3Gi", "given": given})
    assert code == 0
    outputs = {each["step"]: each["outputs"]["parameters"]["Output"] for each in ended(events)}
    return [event.get("text") for event in events], outputs


def test_a_step_is_told_what_was_set_on_its_task_as_on_a_cluster(arrived):
    word = 'say "{{x}}" ✨'
    assert arrived[1]["configured"] == {
        "env": [{"name": "WORD", "value": word}, {"name": "EMPTY", "value": ""}],
        "resources": {
            "requests": {"cpu": "500m"},
            "limits": {"memory": "3Gi", "amd.com/gpu": "2"},
        },
        "own": word,
    }


def test_each_step_tells_its_start_its_lines_and_its_end_with_outputs(spoken):
    _, (events, _) = spoken
    first, second = ended(events)
    assert (first["step"], second["step"]) == ("speak", "speak-2")
    assert first["message"] == "said"
    assert 0 < first["seconds"] < 30
    texts = [event["text"] for event in events if event["event"] == "line"]
    assert "it says python3 $HOME 'x' ✨" in texts
    assert first["outputs"]["artifacts"]["page"]["metadata"] == {"length": 19}


def test_a_run_does_not_wait_for_the_kubernetes_client_of_kfps_own_client():
    program = (
        "import sys; from kfp_pytorch.local.kfp import runner; runner.leave_out_client();"
        "from kfp import components, local; sys.exit('kubernetes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


SPEAKING_AT_ONCE = """
import sys, threading
from kfp_pytorch.local.kfp.runner import LockedFile

sys.stdout = LockedFile(sys.stdout)

def speak():
    for _ in range(100):
        print("x" * 20_000 + "\\n", end="")

threads = [threading.Thread(target=speak) for _ in range(3)]
for thread in threads:
    thread.start()
"""


def test_long_lines_of_steps_that_run_at_once_stay_whole():
    for _ in range(3):
        command = [sys.executable, "-c", SPEAKING_AT_ONCE]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert said.splitlines() == ["x" * 20_000] * 300


def test_identity_is_that_of_the_run_so_that_a_resumed_run_has_the_same_uris(spoken):
    folder, runs = spoken
    uris = [[each["outputs"]["parameters"]["Output"] for each in ended(events)] for events in runs]
    assert uris[0] == uris[1]
    assert uris[0][0] == f"{folder}/speak/page"
    assert "it says the-id" in [event.get("text") for event in runs[0]]


def test_a_step_learns_name_and_times_of_the_run(arrived):
    lines, outputs = arrived
    assert outputs["fill"]["values"] == {"name": "a-run"}
    (created,) = outputs["fill"]["items"]
    assert datetime.fromisoformat(created).tzinfo is not None
    assert f"it says {created}" in lines


def test_a_number_inside_a_dict_or_list_is_written_as_the_backend_writes_it(arrived):
    output = arrived[1]["fill-2"]
    assert output["items"] == ["--epochs=20"]
    assert output["values"]["epochs"] == "20"
    assert float(output["values"]["rate"]) == 1e-5


def test_the_keys_of_a_dict_arrive_in_the_order_that_they_have_on_a_cluster(arrived):
    assert arrived[1]["order"] == [["A", "m", "z"], ["a", "b"], ["epochs", "lr"]]


def test_a_condition_takes_an_output_of_any_name(tmp_path):
    code, events = run(tmp_path / "a-run", judging)
    assert code == 0
    texts = [event["text"] for event in events if event["event"] == "line"]
    rounds = [e["task"] for e in events if (e["event"], e["step"]) == ("started", "measure-2")]
    assert len(set(rounds)) == len(rounds) == 2
    said = sorted(text for text in texts if text.startswith("it says"))
    assert said == ["it says bad", "it says good", "it says nested", "it says whole"]


def test_a_step_that_raises_ends_the_run_and_its_traceback_is_told(tmp_path):
    code, events = run(tmp_path / "a-run", failing)
    assert code == 1
    assert [event["step"] for event in ended(events)] == ["fail"]
    assert ended(events)[0]["exit"] == 1
    assert ended(events)[0]["stderr"].endswith("ValueError: it cannot be")


def test_an_output_that_no_step_can_be_started_with_is_told_with_the_step_and_the_way_out(tmp_path):
    code, events = run(tmp_path / "a-run", swelling)
    assert code == 1
    assert "step speak is handed 140," in events[-1]["message"]
    assert "Hand what is large on as an artifact" in events[-1]["message"]


@pytest.mark.parametrize(
    "path",
    ['say "hi"', *(pytest.param(p, marks=pytest.mark.slow) for p in ("C:\\new\\table", "a\nb"))],
)
def test_a_text_of_a_task_that_kfp_would_change_in_a_list_fails_the_step_that_gets_it(
    tmp_path, path
):
    code, events = run(tmp_path / "a-run", locating, {"path": path})
    assert code == 1
    failed = ended(events)[0]
    assert (failed["step"], failed["exit"]) == ("fill", 1)
    assert f"locate-Output is {path!r}; KFP puts it as it is into the JSON" in failed["stderr"]
    assert f"{tmp_path}/a-run/fill/" in json.dumps(events)


def test_what_kfp_itself_refuses_is_told_too(tmp_path):
    code, events = run(tmp_path / "a-run", sleeping)  # its parameter is missing
    assert code == 1
    assert "marker" in events[-1]["message"]
    assert "\x1b" not in events[-1]["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_step_outlives_its_runner_and_none_is_retried(tmp_path, number):
    marker = tmp_path / "marker"
    folder = tmp_path / "a-run"
    prepare(folder, sleeping, {"marker": str(marker)})
    with start(folder) as process:
        for line in process.stdout:
            if "asleep" in line:
                break
        child = guard.descendants(process.pid)[0]
        os.kill(process.pid if number == signal.SIGTERM else child, number)
        rest = process.stdout.read()
    assert process.returncode == 128 + number
    assert '"started"' not in rest
    assert left_of(folder) == []


def test_a_signal_ends_the_runner_though_a_step_has_ended_by_itself_meanwhile(monkeypatch):
    step_of_the_past = subprocess.Popen([sys.executable, "-c", ""])
    step_of_the_past.wait()
    monkeypatch.setattr(runner, "_terminated", False)
    monkeypatch.setattr(guard, "parents", lambda: {step_of_the_past.pid: os.getpid()})
    with pytest.raises(SystemExit, match="143"):
        runner._terminate(signal.SIGTERM, None)


def test_a_pipeline_within_another_has_its_own_defaults_as_on_a_cluster(tmp_path):
    code, events = run(tmp_path / "a-run", nesting, {"note": "outer"})
    assert code == 0
    outputs = sorted(each["outputs"]["parameters"]["Output"] for each in ended(events))
    assert outputs == ["10 given", "5 own", "5 own"]
