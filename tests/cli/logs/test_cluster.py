"""`kfp-pytorch logs` of jobs on a cluster: an API server whose objects are played."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from harness.api_server import kubeconfig, start_in_thread, write_kubeconfig
from harness.command import COMMAND
from harness.faults.actions import Forbidden
from harness.faults.restart import Restart
from harness.hands import Hands, bury, until
from harness.objects.played import container, end

from kfp_pytorch.cli.runs.jobs import job_of
from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.local.kfp.step import EVENT_MARK

RUN = "6a5b1c0e-0000-4000-8000-000000000001"
ROOT = f"minio://mlpipeline/v2/artifacts/train/{RUN}"
UUID = "0d1e2f3a-0000-4000-8000-00000000000"


@pytest.fixture
def hands(tmp_path):
    (tmp_path / "server").mkdir()
    started = start_in_thread(tmp_path / "server")
    burying = started.run(bury(started.api))
    yield Hands(started)
    burying.cancel()
    started.stop()


@pytest.fixture
def job(hands):
    """Makes a job of a step of the run, of as many nodes and processes."""

    def make(number=0, step="train", nodes=1, processes="1"):
        template = {
            "spec": {
                "containers": [
                    {"name": "pytorch", "image": "a", "args": ["--depth=2", f"--lr=0.{number}"]}
                ]
            }
        }
        replicas = {"Master": 1, "Worker": nodes - 1}
        obj = {
            "metadata": {
                "name": f"job-{number}",
                "namespace": "default",
                "labels": {
                    constants.MANAGED_BY_LABEL: constants.PREFIX,
                    constants.RUN_ID_LABEL: RUN,
                },
                "annotations": {
                    constants.MODEL_URI_ANNOTATION: f"{ROOT}/{step}/{UUID}{number}/model"
                },
            },
            "spec": {
                "nprocPerNode": processes,
                "pytorchReplicaSpecs": {
                    role: {"replicas": count, "template": template}
                    for role, count in replicas.items()
                    if count
                },
            },
        }
        hands.server.call(hands.server.api.create, PYTORCHJOB, obj)
        return f"job-{number}"

    return make


@pytest.fixture
def logs(cli, hands, tmp_path):
    def asked(*arguments):
        where = ("--kubeconfig", hands.server.kubeconfig, "--root", tmp_path)
        return cli("logs", *arguments, *where)

    return asked


def lines(*numbers):
    return [f"2025-11-27T12:00:{n:02}.5Z line {n}" for n in numbers]


def test_the_first_node_of_each_job_is_shown_and_every_pod_is_listed(logs, hands, job):
    for number in (1, 2):
        name = job(number, nodes=2)
        hands.set_conditions(name, "Created", "Running")
        hands.log(hands.running(name), [f"2025-11-27T12:00:00Z {name} learns"])
        hands.log(hands.running(name, "worker"), [f"2025-11-27T12:00:00Z {name} helps"])
    result = logs(RUN)
    assert result.exit_code == 0, result.output
    assert result.stdout == "job-1 learns\njob-2 learns\n"
    assert "  train:lr=0.1  running\n    rank 0: job-1-master-0: Running\n" in result.stderr
    assert "    rank 1: job-2-worker-0: Running\n" in result.stderr
    assert logs("job-2").stdout == "job-2 learns\n"
    assert logs(RUN, "--step", "train:lr=0.2", "--rank", "1").stdout == "job-2 helps\n"
    assert "may be any of 2 steps" in logs(RUN, "--rank", "1").output
    assert "job-2 learns\n" in logs("latest", "--step", "train:2").stdout


def test_the_pod_that_failed_is_shown_with_what_it_wrote_before_it_was_restarted(logs, hands, job):
    name = job(nodes=2)
    hands.set_conditions(name, "Created", "Running")
    hands.log(hands.running(name), lines(1))
    state = {"running": {}, "lastState": {"terminated": end(1)}}
    pod = hands.pod(
        name, "worker", phase="Running", containerStatuses=[container(restarts=1, **state)]
    )
    hands.log(pod, lines(2), number=0)
    hands.log(pod, lines(3), number=1)
    result = logs(RUN)
    assert result.stdout == "line 2\nline 3\n"
    assert "rank 1: job-0-worker-0: Running, 1 restart, exit code 1\n" in result.stderr


def test_of_several_processes_the_lines_that_are_marked_as_anothers_are_left_out(logs, hands, job):
    name = job(nodes=2, processes="2")
    hands.running(name)
    texts = ("[default0]:zero", "[default1]:one", "[rank2]: two", "[rank3]: three", "of all", "[0]")
    hands.log(hands.running(name, "worker"), [f"2025-11-27T12:00:00Z {text}" for text in texts])
    result = logs(RUN, "--rank", "3")
    assert result.stdout.splitlines() == ["[default1]:one", "[rank3]: three", "of all", "[0]"]
    assert "Rank 3 is process 1 of node 1. This is the log of the 2 processes" in result.stderr
    assert "has the ranks 0 to 3, of 2 x 2 processes" in logs(RUN, "--rank", "4").output


def test_the_node_of_a_rank_is_not_guessed(logs, hands, job):
    name = job(nodes=2, processes="auto")
    hands.log(hands.running(name), lines(1))
    message = logs(RUN, "--rank", "1").output
    assert "nproc_per_node is no number" in message
    assert "node 0 (job-0-master-0: Running)" in message


def test_what_is_not_there_is_named_with_what_is_and_the_way_out(logs, hands, job):
    hands.running(job())
    message = logs("nonsuch").output
    assert "There is no job 'nonsuch' in namespace 'default'" in message
    assert f"The newest there: job-0 (run {RUN})." in message
    assert "cleanup is 'never'" in message
    assert "has no step 'other'. There are: train." in logs(RUN, "--step", "other").output
    elsewhere = logs(RUN, "-n", "team").output
    assert f"There is no job '{RUN}' in namespace 'team'" in elsewhere
    hands.fault(Forbidden(), "list", "*/pytorchjobs*", times=None)
    assert "Missing permission" in logs(RUN).output
    hands.reset()
    hands.running(job())
    # Who may see PyTorchJobs alone sees those.
    for plural in ("tfjobs", "mpijobs", "trainjobs"):
        for verb in ("list", "get"):
            hands.fault(Forbidden(), verb, f"*/{plural}*", times=None)
    assert "rank 0: job-0-master-0" in logs(RUN).output
    hands.fault(Forbidden(), "get", "*/log*", times=None)
    message = logs(RUN).output
    assert "rank 0: job-0-master-0: Running" in message
    assert "may not get pods/log 'job-0-master-0' in namespace 'default'" in message
    assert "`kubectl create rolebinding" in message


def test_a_log_is_shown_byte_for_byte_however_long_it_and_its_lines_are(logs, hands, job):
    pod = hands.running(job())
    texts = ["x" * (1 << 20), *("y" * 99 for _ in range(50_000)), "10 %\r20 %\r", "\x1b[1mé", "end"]
    # All of one second, from which a log is read again where its stream breaks.
    hands.log(pod, [f"2025-11-27T12:00:01Z {text}" for text in texts])
    (path,) = hands.server.log_root.glob("*/pytorch/0.log")
    with path.open("ab") as file:
        file.write(b"2025-11-27T12:00:02Z stdout F not UTF-8: \xff\n")
    wanted = "\n".join([*texts, "not UTF-8: \ufffd\n"])
    assert logs(RUN, "--rank", "0").stdout_bytes.decode() == wanted


def test_a_pod_that_does_not_run_is_listed_with_the_reason_and_a_job_without_pods_with_its_state(
    logs, hands, job
):
    name = job()
    hands.set_conditions(name, "Created")
    result = logs(RUN)
    assert "  train  starting\n" in result.stderr
    assert "The pod is not there. A job's pods have logs while they exist." in result.stderr
    message = logs(RUN, "--rank", "0").output
    assert "the pod job-0-master-0 has no log. Those that have one: none" in message
    assert "The log of its step, in the KFP UI," in message
    hands.waiting(name, "ImagePullBackOff", "no such\nimage")
    result = logs(RUN, "--rank", "0")
    assert (result.exit_code, result.stdout) == (0, "")
    how = "job-0-master-0: Pending, ImagePullBackOff: no such image"
    assert f"It has no lines ({how})." in result.stderr
    assert f"    rank 0: {how}\n" in logs(RUN).stderr


def test_the_log_of_a_container_in_a_crash_loop_is_shown_once(logs, hands, job):
    name = job()
    state = {"waiting": {"reason": "CrashLoopBackOff"}, "lastState": {"terminated": end(1)}}
    pod = hands.pod(name, phase="Running", containerStatuses=[container(restarts=1, **state)])
    hands.log(pod, lines(1), number=0)
    hands.log(pod, lines(2), number=1)
    assert logs(RUN).stdout == "line 2\n"


def test_a_run_may_be_named_by_the_beginning_of_its_id_and_without_one_all_are_listed(
    logs, hands, job
):
    assert "no job of kfp-pytorch in namespace 'default'" in logs().output
    for number in (1, 2):
        hands.log(hands.running(job(number)), [f"2025-11-27T12:00:00Z {number} learns"])
    assert logs("6a5b").stdout == "1 learns\n2 learns\n"
    assert logs("job-2").stdout == "2 learns\n"
    assert f"{RUN}  job-1  unacknowledged\n" in logs().stdout


def follow(hands, tmp_path, *arguments):
    where = ["--kubeconfig", str(hands.server.kubeconfig), "--root", str(tmp_path)]
    return subprocess.Popen(
        [*COMMAND, "logs", RUN, "-f", *arguments, *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_log_is_followed_over_a_restart_of_the_server_and_of_the_container(hands, job, tmp_path):
    name = job()
    hands.set_conditions(name, "Created")
    process = follow(hands, tmp_path, "--rank", "0")
    assert "Waiting. " in process.stderr.readline()
    hands.waiting(name, "ErrImagePull", "no such image")
    assert "does not run: ErrImagePull: no such image" in process.stderr.readline()
    pod = hands.running(name)
    hands.log(pod, lines(1, 2))
    assert [process.stdout.readline() for _ in range(2)] == ["line 1\n", "line 2\n"]
    hands.server.restart(Restart(0.2, 0.3, 0.2, 0.2, streams_s=0.1))
    hands.log(pod, lines(3))
    assert process.stdout.readline() == "line 3\n"
    state = {"running": {}, "lastState": {"terminated": end(1)}}
    hands.log(pod, lines(4))
    hands.log(pod, lines(5), number=1)
    hands.pod(name, phase="Running", containerStatuses=[container(restarts=1, **state)])
    assert [process.stdout.readline() for _ in range(2)] == ["line 4\n", "line 5\n"]
    hands.log(pod, lines(6), number=1)
    hands.success(name, restarts=1)
    out, err = process.communicate()
    assert (process.returncode, out) == (0, "line 6\n")
    assert "Traceback" not in err


def test_several_jobs_are_followed_together_and_one_whose_pods_are_gone_has_ended(
    hands, job, tmp_path
):
    first, second = job(1), job(2)
    for name in (first, second):
        hands.set_conditions(name, "Created", "Running")
        hands.log(hands.running(name), lines(1))
    process = follow(hands, tmp_path)
    assert {process.stdout.readline() for _ in range(2)} == {
        "job-1 | line 1\n",
        "job-2 | line 1\n",
    }
    closed, stopped = follow(hands, tmp_path), follow(hands, tmp_path)
    assert {each.stdout.readline()[-7:] for each in (closed, stopped)} == {"line 1\n"}
    closed.stdout.close()
    stopped.send_signal(signal.SIGINT)
    assert "Error" not in stopped.communicate()[1]
    assert stopped.returncode == 130
    hands.delete(PYTORCHJOB, first)
    hands.log(hands.running(second), lines(2))
    hands.success(second)
    out, _ = process.communicate()
    assert (process.returncode, out) == (0, "job-2 | line 2\n")
    assert "Error" not in closed.stderr.read()
    assert closed.wait() == 1


def test_the_namespace_and_the_account_are_those_of_the_kubeconfig(
    cli, hands, job, tmp_path, monkeypatch
):
    path = write_kubeconfig(tmp_path / "team", kubeconfig(hands.server.url, namespace="team"))
    result = cli("logs", RUN, "--kubeconfig", path, "--root", tmp_path)
    assert "in namespace 'team'" in result.output
    assert until(lambda: any("/namespaces/team/" in r.path for r in hands.server.requests))
    monkeypatch.setenv("KUBECONFIG", str(path))
    hands.log(hands.running(job()), lines(1))
    assert cli("logs", RUN, "-n", "default", "--root", tmp_path).stdout == "line 1\n"


def test_the_jobs_of_a_run_whose_steps_ran_here_are_found_by_what_their_steps_were_given(
    logs, hands, job, tmp_path
):
    run = tmp_path / "runs" / "mine-1"
    run.mkdir(parents=True)
    identity = {"name": run.name, "id": "x", "pipeline": "mine", "arguments": {}}
    (run / "run.json").write_text(json.dumps(identity))
    task, inputs = f"{run}/pytorch-job/executor_output.json", {"image": "a", "name": "mine"}
    event = {"event": "started", "step": "pytorch-job", "pod": "", "task": task}
    event |= {"function": "pytorch_job", "inputs": inputs}
    (run / "runner.log").write_text(f"    {EVENT_MARK}{json.dumps(event)}\n")
    made = job_of("pytorch_job", task, inputs)
    metadata = made.manifest["metadata"] | {"namespace": "default"}
    obj = made.manifest | {"metadata": metadata}
    hands.server.call(hands.server.api.create, PYTORCHJOB, obj)
    hands.log(hands.running(made.name), lines(1))
    job(7)
    result = logs("mine-1", "--rank", "0")
    assert result.stdout == "line 1\n", result.output
    assert "  pytorch-job  unacknowledged\n" in logs("mine-1").stderr
