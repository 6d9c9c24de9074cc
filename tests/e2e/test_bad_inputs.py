"""Bad inputs, through the command and through the step: a clear error, and nothing left behind."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from harness.command import until
from harness.disks import mounted
from harness.kfp.steps import Try, drive

from kfp_pytorch.cli import main
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.components.forms import THIS_PYTHON, image_form
from kfp_pytorch.launcher.constants import CLAIM, POD, PYTORCHJOB
from kfp_pytorch.local import client, lifecycle

PIPELINE = f"{Path(__file__).with_name('training_pipelines.py')}:anything"
COMMAND = [sys.executable, "-m", "kfp_pytorch.cli", "run", PIPELINE]
LONG = 130_000

# What was given, and what the error has to say: the input, its value, and the way out.
KNOWN_AT_ONCE = [
    ({"name": "☃"}, "name is '☃'", "needs a letter a-z or a digit"),
    ({"name": "-_-"}, "name is '-_-'", "needs a letter a-z or a digit"),
    ({"num_nodes": 0}, "num_nodes is 0", "from 1 to 10000"),
    ({"num_nodes": -1}, "num_nodes is -1", "from 1 to 10000"),
    ({"num_nodes": "two"}, "num_nodes is an integer", "such as 3"),
    ({"image": ""}, "image is not set", "name of the training image"),
    ({"image": "None"}, "image is not set", "name of the training image"),
    ({"image": " "}, "image is not set", "name of the training image"),
    ({"image": "my image"}, "image is 'my image'", "blank"),
    ({"env": {"A": [1]}}, "env['A']", "a string, a number, true or false"),
    ({"env": {"A": None}}, "env holds null", "Leave out what is null"),
    ({"env": {"A": {"b": 1}}}, "env['A']", "secretKeyRef"),
    ({"env": {"1A": "x"}}, "'1A'", "does not begin with a digit"),
    ({"env": {"": "x"}}, "env has the name ''", "letters, digits"),
    ({"env": {"WORLD_SIZE": 2}}, "WORLD_SIZE", "from num_nodes and nproc_per_node"),
    ({"env": "x"}, "env is a dict", '{"a": 1}'),
    ({"args": ["a", None]}, "args holds null", "Leave out what is null"),
    ({"args": ["x" * LONG]}, "130,", "the limit is 100,000"),
    ({"hyperparameters": {"lr": [1]}}, "hyperparameters['lr']", "a number"),
    ({"output_uri": "ftp://host/x"}, "output_uri is 'ftp://host/x'", "pvc://CLAIM"),
    ({"output_uri": "/data"}, "output_uri is '/data'", "not seen by the job's pods"),
    ({"output_uri": "pvc://"}, "names no claim", "pvc://CLAIM/sub/path"),
    ({"output_uri": "pvc://My_Claim"}, "'My_Claim'", "lower case"),
    ({"output_uri": "pvc://c/../x"}, "'..'", "folder's name"),
    ({"output_uri": "s3://"}, "is no bucket", "lower case"),
    ({"resume_from": "nowhere"}, "resume_from is 'nowhere'", "pvc://CLAIM"),
    ({"command": "python train.py"}, "command is a list", '["a", "b"]'),
    ({"nproc_per_node": "zero"}, "nproc_per_node is 'zero'", "auto, cpu or gpu"),
    ({"nproc_per_node": "0"}, "nproc_per_node is 0", "from 1"),
    ({"memory": "lots"}, "memory is 'lots'", "500m or 4Gi"),
    ({"memory": "100m"}, "memory is '100m'", "thousandth"),
    ({"labels": {"a b": "c"}}, "'a b'", "63 letters"),
    ({"labels": {"a": "c d"}}, "'c d'", "An annotation takes any text"),
    ({"ttl_seconds": 5}, "ttl_seconds is 5", "120"),
    ({"restart_policy": "Sometimes"}, "'Sometimes'", "OnFailure"),
    ({"cleanup": "maybe"}, "'maybe'", "on_failure, always, never"),
    ({"pod_template_patch": {"spec": {"containers": {}}}}, "pod_template_patch", "list"),
]


compiled_once = functools.cache(packages.find_one)


@pytest.mark.parametrize(("given", "value", "way_out"), KNOWN_AT_ONCE)
def test_what_cannot_work_is_refused_before_a_cluster_is_started(
    tmp_path, monkeypatch, given, value, way_out
):
    monkeypatch.setattr(packages, "find_one", compiled_once)
    root = tmp_path / "root"
    arguments = ["run", PIPELINE, "--local", "--json", "--root", str(root), *options(given)]
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 1, ended.output
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["status"] == "failed"
    assert value in told["error"]
    assert way_out in told["error"]
    assert told["error"] in ended.stderr
    assert not root.exists()


def options(given):
    """Write parameters as a person types them."""
    pairs = {k: v if isinstance(v, str) else json.dumps(v) for k, v in given.items()}
    return [word for name, value in pairs.items() for word in ("-p", f"{name}={value}")]


@pytest.fixture(scope="module")
def package():
    return image_form(packages.find_one(PIPELINE).spec, THIS_PYTHON)


# What only the run can find out.
OUT_OF_MEMORY = """
held = []
while True:
    held.append(bytearray(20_000_000))
"""
RAISES = "raise ValueError('the very words')"
TRAINING = ["python", "-m", "kfp_pytorch.training"]
# The operator is given a moment to make the pods after all.
LATE = "a service account that is not there"
FOUND_BY_THE_RUN = {
    "a claim that is not there": (
        {"output_uri": "pvc://nonsuch/x"},
        ["no PersistentVolumeClaim 'nonsuch'", "kubectl get pvc"],
    ),
    "another job's claim that is not there": (
        {"resume_from": "pvc://nonsuch/x"},
        ["resume_from is 'pvc://nonsuch/x'", "no PersistentVolumeClaim 'nonsuch'"],
    ),
    "a command that does not exist": (
        {"command": ["nonsuch-program"]},
        ['"nonsuch-program": executable file not found', "Check command"],
    ),
    LATE: (
        {"service_account": "nonsuch"},
        ["error looking up service account default/nonsuch", "correct service_account"],
    ),
    "a script that raises": (
        {"command": ["python", "-c", RAISES]},
        ["raised ValueError: the very words", 'File "<string>", line 1, in <module>'],
    ),
    "a script that needs too much memory": (
        {"command": ["python", "-c", OUT_OF_MEMORY], "memory": "150Mi"},
        ["ran out of memory: OOMKilled", "its limit of 150Mi", "Raise memory"],
    ),
    "a script that crashes in native code": (
        {"command": ["python", "-c", "import os; os.abort()"]},
        ["exit code 134 (SIGABRT)"],
    ),
    "an unknown data set": (
        {"command": TRAINING, "args": ["--dataset=nonsuch"]},
        ["--dataset is 'nonsuch'", "digits, fashion-mnist"],
    ),
    "an unknown argument": (
        {"command": TRAINING, "args": ["--epoch=3"]},
        ["--epoch"],
    ),
}


@pytest.mark.local_cluster
@pytest.mark.parametrize(
    "what", [pytest.param(w, marks=pytest.mark.slow if w == LATE else ()) for w in FOUND_BY_THE_RUN]
)
def test_what_the_run_finds_out_is_told_at_the_end_of_the_step_and_in_short(
    where, package, cluster, what
):
    given, words = FOUND_BY_THE_RUN[what]
    basic = {"image": "train", "name": "bad", "restart_policy": "Never"}
    ended = Try(drive(package, "pytorch-job", where, basic | given), where).wait()
    assert ended.code == 1
    # The last that the step says is one message, which begins here.
    message = ended.log.rpartition("pytorch_job failed.")[2]
    assert all(word in message for word in words), message
    assert words[0] in ended.message
    assert len(ended.message.encode()) <= 4096
    assert ended.artifacts == {}
    nothing_is_left(cluster, "bad-")


@pytest.mark.local_cluster
@pytest.mark.slow
def test_an_unknown_model_is_answered_with_those_that_there_are(where, package, cluster):
    given = {"image": "train", "name": "bad", "restart_policy": "Never"}
    given |= {"command": TRAINING, "args": ["--model=nonsuch"]}
    ended = Try(drive(package, "pytorch-job", where, given), where).wait()
    assert ended.code == 1
    assert "nonsuch" in ended.message
    assert "small_cnn" in ended.log
    nothing_is_left(cluster, "bad-")


def nothing_is_left(cluster, prefix):
    """No job, no pod of one, no process of such a pod, once the cluster has deleted them."""
    handle = lifecycle.status(cluster.root)
    # The step asks for the job's deletion and ends; a busy cluster needs a while for it.
    until(lambda: not list(left(handle, prefix)))


def left(handle, prefix):
    """The names of jobs and pods, and the processes of such pods."""
    for kind in (PYTORCHJOB, POD):
        listed = client.request(handle.url, "GET", client.path(kind, "default"), token=handle.token)
        names = [item["metadata"]["name"] for item in listed["items"]]
        yield from (n for n in names if n.startswith(prefix) and not n.startswith("run-"))
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environment = path.read_bytes().split(b"\0")
            yield from (v for v in environment if v.startswith(f"HOSTNAME={prefix}".encode()))


@pytest.mark.parametrize("verb", ["create", pytest.param("watch", marks=pytest.mark.slow)])
def test_a_missing_permission_is_named_with_the_account_and_what_to_apply(
    api_server, tmp_path, verb
):
    from harness.faults.actions import Forbidden
    from harness.faults.plan import Fault

    account = "system:serviceaccount:default:runner"
    claim(api_server)
    api_server.faults.add(Fault(Forbidden(account), verb=verb, path="*/pytorchjobs", times=None))
    where = ["--kubeconfig", str(api_server.kubeconfig), "--root", str(tmp_path / "root")]
    ran = subprocess.run([*COMMAND, *where, "--json"], capture_output=True, text=True)
    assert ran.returncode == 1
    error = json.loads(ran.stdout)["error"]
    for words in (f"{account} may not {verb} pytorchjobs", "kubeflow.org", "manifests/rbac.yaml"):
        assert words in error
    assert "Traceback" not in ran.stderr
    assert api_server.call(api_server.api.list, PYTORCHJOB, "default") == []


@pytest.mark.slow
def test_an_api_server_that_cannot_be_reached_is_named_with_its_address(tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    clusters = [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {}}]
    config = {"clusters": clusters, "contexts": contexts, "users": users, "current-context": "c"}
    kubeconfig.write_text(json.dumps(config))
    where = ["--kubeconfig", str(kubeconfig), "--root", str(tmp_path / "root"), "--json"]
    ran = subprocess.run([*COMMAND, *where], capture_output=True, text=True)
    assert ran.returncode == 1
    error = json.loads(ran.stdout)["error"]
    for words in ("http://127.0.0.1:9", str(kubeconfig), "Connection refused"):
        assert words in error


def claim(api_server):
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": "kfp-pytorch", "namespace": "default"}, "spec": spec}
    api_server.call(api_server.api.create, CLAIM, body)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 3 MiB."""
    with mounted(tmp_path / "disk", "size=3m") as place:
        yield place


FILLS = """
import os, pathlib
folder = pathlib.Path(os.environ["KFP_PYTORCH_OUTPUT"])
folder.mkdir(parents=True, exist_ok=True)
with (folder / "weights").open("wb") as file:
    while True:
        file.write(bytes(100_000))
"""


# What this one says does not fit on the disk either.
SPEECHLESS = f"""
print("begun", flush=True)
try:
    {FILLS.strip().replace(chr(10), chr(10) + "    ")}
except OSError:
    raise SystemExit("x" * 20_000)
"""


@pytest.mark.local_cluster
@pytest.mark.parametrize("script", [pytest.param(FILLS, marks=pytest.mark.slow), SPEECHLESS])
def test_a_disk_that_is_full_is_said_so_and_the_command_ends_in_order(small_disk, script):
    given = {"command": ["python", "-c", script], "name": "filling", "restart_policy": "Never"}
    where = ["--local", "--root", str(small_disk / "root"), "--json"]
    ran = subprocess.run([*COMMAND, *where, *options(given)], capture_output=True, text=True)
    assert ran.returncode == 1
    told = json.loads(ran.stdout)
    assert "No space left on device" in told["error"]
    assert "A disk is full" in told["error"]
    assert "kfp_pytorch/cli" not in ran.stderr  # no traceback of the command's own
    assert lifecycle.status(small_disk / "root") is None


@pytest.mark.local_cluster
def test_a_disk_that_is_full_from_the_start_is_named(small_disk):
    with (small_disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    where = ["--local", "--root", str(small_disk / "root"), "--json"]
    ran = subprocess.run([*COMMAND, *where], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "No space left on device" in json.loads(ran.stdout)["error"]
    assert "Traceback" not in ran.stderr
