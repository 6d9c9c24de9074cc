"""A program that fails twice in the same way at its start is not started again and again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from harness.objects import evident, played

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.diagnosis.same_error import failed_once, failed_twice
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.limits import Limits

Object = dict[str, Any]
BEGIN = datetime.fromisoformat(played.STARTED)
TRACEBACK = """Traceback (most recent call last):
  File "/app/train.py", line {line}, in <module>
    main()
  File "/app/train.py", line 7, in main
    raise ValueError(f"no shard in {{loader}} on port {{port}}")
{kind}: {message}
"""
WORDS = "failed twice in the same way within a minute, so it is not started again"
KILLED = " rank : 0 (local_rank: 0)\n exitcode : -9 (pid: 7)\n"
WAY_OUT = "set retry_same_error=True to go on to backoff_limit"


def log(
    number: int, line: int = 9, kind: str = "ValueError", message: str = "", before: str = ""
) -> str:
    """What a run of the program writes at its end: some of it is another in each run."""
    words = message or f"no shard in <Loader at 0x7f{number}a4> on port 4010{number}"
    return f"{before}start {number}\n" + TRACEBACK.format(line=line, kind=kind, message=words)


def message(number: int, kind: str = "ValueError", **more: Any) -> str:
    """The same, as training reports it."""
    error = {"rank": number, "time": 5.0 + number, "type": kind, "message": f"no shard {number}"}
    error["traceback"] = TRACEBACK.format(line=9, kind=kind, message=error["message"])
    return json.dumps({"version": 1, "status": "failed", "error": error | more})


def end(number: int, text: str, code: int = 1, seconds: float = 8, reason: str = "Error") -> Object:
    """How a run of the container ended; each begins 30 s after the one before."""
    started = BEGIN + timedelta(seconds=30 * number)
    at = [f"{when:%Y-%m-%dT%H:%M:%SZ}" for when in (started, started + timedelta(seconds=seconds))]
    return played.end(code, text, reason, *at)


class Program:
    """The program of a job's pods, which the kubelet starts again in place."""

    def __init__(self, step: Any, hands: Any, says: Any, **inputs: Any) -> None:
        self.run = step(**inputs)
        self.hands, self.number = hands, 0
        self.before: dict[str, Object] = {}  # how it ended before, by role
        self.nodes = ["master", *["worker"] * (self.run.inputs.num_nodes - 1)]
        for role in self.nodes:
            hands.running(self.run.job, role)
        hands.set_conditions(self.run.job, "Created", "Running")
        says("running")

    def fails(self, *ends: Object) -> Program:
        """A run of it on each node ends so."""
        for role, ended in zip(self.nodes, ends, strict=True):
            container = self.container(role, terminated=ended)
            self.hands.pod(self.run.job, role, phase="Running", containerStatuses=[container])
        self.number += 1
        return self

    def starts_again(self, *ends: Object) -> Program:
        for role, ended in zip(self.nodes, ends, strict=True):
            self.before[role] = {"lastState": {"terminated": ended}}
            container = self.container(role, running={"startedAt": played.STARTED})
            self.hands.pod(self.run.job, role, phase="Running", containerStatuses=[container])
        return self

    def container(self, role: str, **state: Object) -> Object:
        return played.container(restarts=self.number, **state, **self.before.get(role, {}))

    def fails_each_time(self, *ends: Object) -> Program:
        """It fails on the first node, and is started again after each time but the last."""
        for place, ended in enumerate(ends):
            self.fails(ended)
            if place + 1 < len(ends):
                self.starts_again(ended)
        return self


@pytest.fixture
def program(step: Any, hands: Any, says: Any) -> Any:
    return lambda **inputs: Program(step, hands, says, **inputs)


@pytest.mark.parametrize("written", [log, message], ids=["in its log", "reported by training"])
def test_the_same_error_twice_at_the_start_ends_the_job_and_says_why(
    program: Any, hands: Any, written: Any
) -> None:
    failing = program().fails_each_time(end(0, written(0)), end(1, written(1)))
    words = failing.run.failed(JobFailed)
    assert " raised ValueError: no shard" in words.split("\n")[0]
    said = " ".join(words.split())
    assert f"PyTorchJob {failing.run.job} {WORDS}; {WAY_OUT}" in said
    hands.until(lambda: hands.jobs() == [])


def test_a_log_says_it_where_the_end_of_it_does_not(program: Any, hands: Any) -> None:
    failing = program()
    pod = hands.find(POD, f"{failing.run.job}-master-0")
    summary = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    for number in range(2):
        lines = (log(number) + summary).splitlines()
        hands.log(pod, [f"2025-11-27T12:00:0{number}.5Z {line}" for line in lines], number)
    failing.fails_each_time(end(0, summary), end(1, summary))
    assert WORDS in " ".join(failing.run.failed(JobFailed).split())


def test_a_traceback_of_hundreds_of_lines_is_read_whole(program: Any, hands: Any) -> None:
    failing = program()
    pod = hands.find(POD, f"{failing.run.job}-master-0")
    frames = "".join(f'  File "/lib/{n}.py", line {n}, in call\n    call()\n' for n in range(120))
    written = "Traceback (most recent call last):\n" + frames + "ValueError: no shard\n"
    for number in range(2):
        lines = [f"2025-11-27T12:00:0{number}.5Z {line}" for line in written.splitlines()]
        hands.log(pod, lines, number)
    failing.fails_each_time(end(0, written[-2048:]), end(1, written[-2048:]))
    assert WORDS in " ".join(failing.run.failed(JobFailed).split())


def test_one_node_that_fails_alone_counts_and_lost_peers_do_not(program: Any) -> None:
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer [10.0.0.7]:4010"
    failing = program(num_nodes=2)
    for number in range(2):
        peer = log(number, kind="RuntimeError", message=lost)
        ends = [end(number, peer), end(number, log(number))]
        failing.fails(*ends)
        if not number:
            failing.starts_again(*ends)
    assert WORDS in " ".join(failing.run.failed(JobFailed).split())


SAME = end(0, log(0))


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([SAME, end(1, log(1), code=2)], id="another exit code"),
        pytest.param([end(0, log(0), code=137), end(1, log(1), code=137)], id="killed"),
        pytest.param([end(0, log(0), code=138), end(1, log(1), code=138)], id="asks for a retry"),
        pytest.param([SAME, end(1, log(1), code=143)], id="stopped"),
        pytest.param([SAME, end(1, log(1), reason="OOMKilled")], id="out of memory"),
        pytest.param([SAME, end(1, log(1, line=12))], id="another line of the program"),
        pytest.param([SAME, end(1, log(1, kind="KeyError"))], id="another error"),
        pytest.param([SAME, end(1, log(1), seconds=75)], id="the second ran longer"),
        pytest.param([end(-9, log(0), seconds=90), end(1, log(1))], id="the first ran longer"),
        pytest.param(
            [end(-9, "bye", 137, 900), end(1, log(1)), end(2, log(2))], id="it ran longer before"
        ),
        pytest.param([end(0, "bye"), end(1, "bye")], id="no traceback"),
        pytest.param([end(n, log(n, kind="a.ConnectionError")) for n in (0, 1)], id="no server"),
        pytest.param([end(n, log(n, kind="OutOfMemoryError")) for n in (0, 1)], id="a full GPU"),
        pytest.param([SAME, end(1, log(1, kind="KeyError")), end(2, log(2))], id="not in a row"),
        pytest.param([end(n, log(n, before=KILLED)) for n in (0, 1)], id="a rank was killed"),
    ],
)
def test_what_another_start_may_mend_is_started_again(kube: Any, ends: list[Object]) -> None:
    assert failed_twice(after(kube, ends)) == ""


def test_the_same_error_after_a_newer_checkpoint_is_another(kube: Any) -> None:
    def reported(number: int, step: int | None) -> Object:
        return end(number, json.dumps({**json.loads(message(number)), "checkpoint": step}))

    assert failed_twice(after(kube, [reported(0, None), reported(1, 7)])) == ""
    assert failed_twice(after(kube, [reported(0, 7), reported(1, 8)])) == ""
    assert WORDS in failed_twice(after(kube, [reported(0, 7), reported(1, 7)]))


def test_the_same_error_counts_whatever_it_was_before(kube: Any) -> None:
    ends = [end(0, log(0, kind="KeyError")), end(1, log(1)), end(2, log(2))]
    assert WORDS in failed_twice(after(kube, ends))


CHANGING = [
    "pid {0}41 at 2025-11-27T12:0{0}:00.92{0}5 in 0.{0}s",
    "<object at 0x7f{0}a4c0> of 127.0.0.1:4010{0}",
    "no file /tmp/tmpab{0}c_d9/x, /tmp/tmp.k{0}LmNoPqRs or /tmp/torchelastic_{0}/none_x{0}c4v2a1b",
    "run 0{0}f3a9c1-77b2-4c1e-9d55-1a2b3c4d5e6{0} of 9f{0}ac2d and {0}b3c9f, lr 1.0{0}e-07",
]


@pytest.mark.parametrize("words", CHANGING)
def test_addresses_times_ports_and_ids_make_no_other_error(kube: Any, words: str) -> None:
    ends = [end(n, log(n, message=words.format(n))) for n in (0, 1)]
    assert ends[0]["message"].splitlines()[-1] != ends[1]["message"].splitlines()[-1]
    assert WORDS in failed_twice(after(kube, ends))


def test_a_program_in_a_temporary_folder_is_the_same_in_another(kube: Any) -> None:
    ends = [end(n, log(n).replace("/app/", f"/tmp/tmp.aB3dE5{n}/")) for n in (0, 1)]
    assert WORDS in failed_twice(after(kube, ends))


def test_what_failed_twice_counts_though_its_pod_is_gone(kube: Any) -> None:
    gatherer = watching(kube)
    ends = [SAME, end(1, log(1))]
    last = {"lastState": {"terminated": ends[0]}}
    status = evident.container(restarts=1, state={"terminated": ends[1]}, **last)
    gatherer.record_event("MODIFIED", owned(status))
    gatherer.record_event("DELETED", owned(status))
    assert gatherer.pods() == []
    assert WORDS in failed_twice(gatherer.evidence)


def test_a_second_try_whose_pod_went_before_its_end_was_seen_is_left_to_a_third(kube: Any) -> None:
    gatherer = watching(kube)
    last = {"lastState": {"terminated": SAME}}
    gatherer.record_event("MODIFIED", owned(evident.container(state={"terminated": SAME})))
    status = evident.container(restarts=1, state={"running": {}}, **last)
    gatherer.record_event("DELETED", owned(status))
    assert failed_twice(gatherer.evidence) == ""


def test_runs_that_were_not_seen_may_have_been_long(kube: Any) -> None:
    assert failed_twice(after(kube, [end(4, log(4)), end(5, log(5))], first=4)) == ""


def test_a_program_that_has_been_started_a_third_time_is_left_to_run(kube: Any) -> None:
    evidence = after(kube, [SAME, end(1, log(1))])
    assert WORDS in failed_twice(evidence)
    last = {"lastState": {"terminated": end(1, log(1))}}
    again = evident.container(restarts=2, state={"running": {}}, **last)
    evidence.pods["j-master-0"] = evident.pod(0, again)
    assert failed_twice(evidence) == ""


def test_a_pod_that_is_made_anew_for_each_start_counts_as_one_that_starts_again(kube: Any) -> None:
    """As by operators that restart no container in place."""
    gatherer = watching(kube)
    for number in range(2):
        state = {"terminated": end(number, log(number))}
        gatherer.record_event("ADDED", owned(evident.container(state=state), uid=str(number)))
    assert WORDS in failed_twice(gatherer.evidence)


def test_where_nothing_limits_restarts_the_first_failure_of_its_own_counts(kube: Any) -> None:
    lost = end(0, message(0, "torch.distributed.DistNetworkError"))
    assert failed_once(after(kube, [])) == ""
    assert failed_once(after(kube, [lost])) == ""
    assert "set retry_same_error=True" in failed_once(after(kube, [lost, end(1, message(1))]))
    assert failed_once(after(kube, [end(0, "", 137, reason="OOMKilled")]))


def watching(kube: Any) -> Gatherer:
    job = evident.job(2)
    job["metadata"]["uid"] = "1"
    return Gatherer(kube, PYTORCH_JOB, job, Limits())


def owned(status: Object, uid: str = "p") -> Object:
    pod = evident.pod(0, status)
    pod["metadata"] |= {"uid": uid, "ownerReferences": [{"uid": "1"}]}
    return pod


def after(kube: Any, ends: list[Object], first: int = 0) -> Evidence:
    """What is seen of a job whose program ended so again and again on its first node."""
    gatherer, last = watching(kube), {}
    for number, ended in enumerate(ends, first):
        status = evident.container(restarts=number, state={"terminated": ended}, **last)
        gatherer.record_event("MODIFIED", owned(status))
        last = {"lastState": {"terminated": ended}}
    return gatherer.evidence


def test_an_input_has_it_started_again_up_to_the_backoff_limit(program: Any, hands: Any) -> None:
    failing = program(retry_same_error=True).fails_each_time(SAME, end(1, log(1)))
    hands.set_conditions(failing.run.job, "Created", "Failed: it has reached the backoff limit")
    said = " ".join(failing.run.failed(JobFailed).split())
    assert "it has reached the backoff limit" in said
    assert WORDS not in said
