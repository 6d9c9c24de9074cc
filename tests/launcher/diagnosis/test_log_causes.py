"""What a program's own words say; the rest of a diagnosis is in test_diagnosis."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kfp_pytorch.launcher.diagnosis.message import Diagnosis, diagnose
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.waiting.evidence import Evidence


def pod(node: int, code: int = 1, message: str = "") -> dict[str, Any]:
    ended = {"exitCode": code, "reason": "Error", "message": message}
    status = {"name": "pytorch", "state": {"terminated": ended} if code else {"running": {}}}
    role, index = ("worker", node - 1) if node else ("master", 0)
    labels = {
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
    }
    metadata = {"name": f"j-{role}-{index}", "labels": labels}
    return {"metadata": metadata, "status": {"containerStatuses": [status]}}


def of(*pods: dict[str, Any], logs: dict[str, str] | None = None, nproc: int = 1) -> Diagnosis:
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": max(1, len(pods) - 1)}}
    spec = {"nprocPerNode": str(nproc), "pytorchReplicaSpecs": replicas}
    evidence = Evidence(
        PYTORCH_JOB,
        job={"metadata": {"name": "j"}, "spec": spec},
        pods={p["metadata"]["name"]: p for p in pods},
        logs=logs or {},
    )
    return diagnose(evidence, "PyTorchJob j failed.")


def first_line(diagnosis: Diagnosis) -> str:
    return diagnosis.message.splitlines()[0]


def failure(rank: int, kind: str, message: str) -> str:
    error = {"rank": rank, "time": 1.0, "type": kind, "message": message}
    return json.dumps({"version": 1, "status": "failed", "error": error})


def test_a_collective_that_timed_out_names_the_rank_that_was_missing() -> None:
    nccl = (
        "[rank{r}]:[E] ProcessGroupNCCL.cpp:632 [Rank {r}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=53, OpType=ALLREDUCE, NumelIn=1) ran for 600012 milliseconds "
        "before timing out."
    )
    pods = [pod(node, 134) for node in range(2)]
    logs = {
        "j-master-0": "\n".join(nccl.format(r=r) for r in (0, 1)),
        "j-worker-0": nccl.format(r=2),
    }
    found = of(*pods, logs=logs, nproc=2)
    assert first_line(found) == (
        "NCCL ALLREDUCE timed out after 600 s; missing: rank 3 (j-worker-0)."
    )
    assert "Look at the missing ranks first" in found.message


def test_the_rank_that_lags_behind_is_named_where_all_of_them_waited() -> None:
    line = (
        "[E ProcessGroupNCCL.cpp:458] [Rank {}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={}, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800251 milliseconds"
    )
    logs = {"j-master-0": line.format(0, 96120), "j-worker-0": line.format(1, 64088)}
    found = of(pod(0, 134), pod(1, 134), logs=logs)
    assert "missing: rank 1 (j-worker-0)" in first_line(found)


def test_the_rank_that_lags_behind_is_named_in_newer_versions_words_too() -> None:
    line = (
        "[rank{0}]:[E1128 02:00:00 ProcessGroupNCCL.cpp:685] [PG ID 0 PG GUID 0(default_pg) Rank "
        "{0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600051 milliseconds before timing out."
    )
    logs = {"j-master-0": line.format(0, 12), "j-worker-0": line.format(1, 11)}
    found = of(pod(0, 134), pod(1, 134), logs=logs)
    assert first_line(found) == (
        "NCCL ALLREDUCE timed out after 600 s; missing: rank 1 (j-worker-0)."
    )


def test_a_peer_that_gloo_could_not_connect_to_is_named_by_its_address() -> None:
    gone = pod(1, code=0)
    gone["status"]["podIP"] = "10.0.3.7"
    log = (
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/"
        "pair.cc:144] timed out connecting: SO_ERROR: Connection refused, remote=[10.0.3.7]:28048"
    )
    found = of(pod(0), gone, logs={"j-master-0": log})
    assert first_line(found) == "A rank lost the connection to j-worker-0."


def test_what_newer_versions_say_of_the_watchdog_counts_as_waiting() -> None:
    line = (
        "[rank0]:[E626 06:24:44 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 0] "
        "Exception (either an error or timeout) detected by watchdog at work: 808, last enqueued "
        "NCCL work: 811, last completed NCCL work: 807.\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0."
    )
    found = of(pod(0, 134), pod(1, code=0), logs={"j-master-0": line})
    assert "missing: rank 1 (j-worker-0)" in first_line(found)


def test_a_peer_that_closed_the_connection_is_named_by_its_address() -> None:
    gone = pod(1, code=0)
    gone["status"]["podIP"] = "10.0.3.7"
    log = (
        "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.3.7]:28048"
    )
    found = of(pod(0), gone, logs={"j-master-0": log})
    assert first_line(found) == "A rank lost the connection to j-worker-0."


def test_a_rank_that_was_killed_is_why_others_lost_their_peer() -> None:
    log = "RuntimeError: Connection closed by peer [10.0.3.7]:28048"
    found = of(pod(0, 1), pod(1, 137), logs={"j-master-0": log})
    assert first_line(found) == (
        "j-worker-0 ended with exit code 137 (SIGKILL); 1 more pod failed too."
    )


@pytest.mark.parametrize("who", ["clients", "workers"])
def test_processes_that_never_came_are_counted(who: str) -> None:
    log = f"torch.distributed.DistStoreError: Timed out after 61 seconds waiting. 3/4 {who} joined."
    found = of(pod(0), pod(1), logs={"j-master-0": log})
    assert first_line(found) == "Only 3 of 4 processes came to the rendezvous."


def test_a_pod_that_has_not_started_is_named_where_processes_never_came() -> None:
    log = (
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting. 3/4 clients joined."
    )
    late = pod(2, code=0)
    late["status"]["phase"] = "Pending"
    found = of(pod(0), pod(1), late, logs={"j-master-0": log})
    assert first_line(found) == (
        "Only 3 of 4 processes came to the rendezvous; not started: j-worker-1."
    )


def test_the_barrier_s_own_words_about_missing_ranks() -> None:
    log = "RuntimeError: [Rank 0]: Ranks 5, 9 failed to pass monitoredBarrier in 1800000 ms"
    found = of(pod(0), logs={"j-master-0": log}, nproc=4)
    assert first_line(found) == (
        "Not every rank came to a barrier within 1800 s; missing: ranks 5 and 9 (j-worker-0 and "
        "j-worker-1)."
    )


def test_training_s_own_word_of_a_rank_that_has_gone_is_no_error_of_its_own() -> None:
    words = "rank 1 has gone; its own error is the one to look for"
    lost = failure(0, "PeerLostError", words)
    killed = of(pod(0, message=lost), pod(1, 137))
    assert first_line(killed).startswith("j-worker-0 ended with exit code 137 (SIGKILL)")
    alone = of(pod(0, message=lost), pod(1, code=0))
    assert first_line(alone).endswith("; missing: rank 1 (j-worker-0).")


def test_gloo_that_timed_out() -> None:
    message = "[../gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"
    lost = failure(0, "RuntimeError", message)
    found = of(pod(0, message=lost), pod(1, code=0))
    assert first_line(found) == ("Gloo recv timed out after 1800 s; missing: rank 1 (j-worker-0).")


def test_a_rendezvous_that_nobody_answers_is_named_with_host_and_port() -> None:
    log = "[c10d] The client socket has failed to connect to [j-master-0]:23456 (errno: 111)"
    found = of(pod(1), logs={"j-worker-0": log})
    assert "The rendezvous at j-master-0:23456 could not be reached" in first_line(found)


@pytest.mark.parametrize(
    ("kind", "message", "advice"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "smaller batch"),
        ("RuntimeError", "bus error: insufficient shared memory (shm)", "shm_size"),
        ("RuntimeError", "CUDA error: invalid device ordinal", "LOCAL_RANK"),
        ("OSError", "[Errno 28] No space left on device", "disk is full"),
        ("NoCredentialsError", "Unable to locate credentials", "output_secret"),
        ("RuntimeError", "CUDA error: uncorrectable ECC error encountered", "a GPU is broken"),
        ("RuntimeError", "Found no NVIDIA driver on your system.", "set gpus_per_node"),
        ("AssertionError", "Torch not compiled with CUDA enabled", "torch for CPUs alone"),
        ("RuntimeError", "CUDA error: device-side assert triggered", "CUDA_LAUNCH_BLOCKING"),
        ("RuntimeError", "Unable to find address for: ib0", "GLOO_SOCKET_IFNAME"),
        ("DistNetworkError", "code: -98, name: EADDRINUSE, message: in use", "one torchrun a pod"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory", "raise memory"),
        ("OSError", "[Errno 116] Stale file handle", "The storage failed"),
        ("ModuleNotFoundError", "No module named 'x'", "into the image"),
        ("CheckpointError", "step-4 was made with model 'resnet18'", "checkpoint was refused"),
        ("RuntimeError", "Error(s) in loading state_dict for Net:", "checkpoint was refused"),
        ("SignalException", "Process 1 got signal: 15", "stopped by SIGTERM"),
    ],
)
def test_known_errors_come_with_what_to_do(kind: str, message: str, advice: str) -> None:
    found = of(pod(0, message=failure(0, kind, message)))
    assert advice in found.message.splitlines()[1]


def test_a_traceback_is_found_in_the_log_of_a_container_that_writes_no_message() -> None:
    log = (
        "step 1\n[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/app/train.py", line 7, in <module>\n'
        "[rank3]:     main()\n[rank3]: RuntimeError: shapes do not fit\n"
        "Traceback (most recent call last):\n  File torchrun\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\n"
    )
    found = of(pod(0), logs={"j-master-0": log})
    assert first_line(found) == "Rank 3 (j-master-0) raised RuntimeError: shapes do not fit."
    assert "ChildFailedError" not in found.message.split("The last lines")[0]


GATHERED = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/lib/torch/distributed/checkpoint/utils.py", line 264, in all_reduce
[rank1]:     raise final_result
[rank1]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:[0]
[rank1]: Traceback (most recent call last): (RANK 0)
"""


REMOTE = """\
[rank1]:   File "/lib/torch/storage.py", line 7, in write
[rank1]: OSError: unexpected pos 64
"""
OWN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 7, in save
[rank1]: SaveError: [Errno 28] No space left on device
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (GATHERED + REMOTE, "OSError: unexpected pos 64"),
        (GATHERED + REMOTE + OWN, "SaveError: [Errno 28] No space left on device"),
    ],
)
def test_what_a_distributed_checkpoint_gathers_is_told_by_the_error_itself(
    log: str, told: str
) -> None:
    found = of(pod(0), logs={"j-master-0": log})
    assert first_line(found) == f"Rank 1 (j-master-0) raised {told}."


def test_what_a_kubelet_adds_to_a_log_that_is_cut_is_told() -> None:
    lost = "[the end of this container's log is lost: No space left on device]"
    found = of(pod(0, message=f"{GATHERED}{lost}"), logs={"j-master-0": GATHERED})
    assert first_line(found) == f"The log says: {lost}."
    assert "disk is full" in found.message.splitlines()[1]
    assert found.message.rstrip().endswith(lost)


def test_the_kubelet_s_copy_of_the_log_serves_where_the_log_is_gone() -> None:
    log = "Traceback (most recent call last):\n  File x\nImportError: no module named torch\n"
    found = of(pod(0, message=log))
    assert first_line(found) == "j-master-0 raised ImportError: no module named torch."


@pytest.mark.parametrize(
    ("kind", "nccl", "last", "advice"),
    [
        ("unhandled cuda error", "UnhandledCudaError: Call to CUDA function failed.",
         "Cuda failure 'out of memory'", "smaller batch"),
        ("invalid usage", "InvalidUsage: This usually reflects invalid usage of NCCL library.",
         "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10", "LOCAL_RANK"),
        ("unhandled system error", "SystemError: System call (e.g. socket, malloc) failed.",
         "Error while creating shared memory segment /dev/shm/nccl-A (size 9637888)", "shm_size"),
        ("invalid usage", "InvalidUsage: This usually reflects invalid usage of NCCL library.",
         "Failed to initialize any NET plugin", "rdma in placement"),
        ("unhandled system error", "SystemError: System call (e.g. socket, malloc) failed.",
         "Call to ibv_reg_mr failed with error Cannot allocate memory", "IPC_LOCK"),
        ("internal error", "InternalError: Internal check failed.",
         "Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["log", "message"])
def test_an_error_of_nccl_that_is_no_peer_s_doing_is_told_as_what_it_is(
    how: str, kind: str, nccl: str, last: str, advice: str
) -> None:
    words = (
        f"NCCL error in: x.cpp:1, {kind} (run with NCCL_DEBUG=INFO for details), NCCL version 2.2\n"
        f"nccl{nccl}\nLast error:\n{last}"
    )
    text = (
        f"Traceback (most recent call last):\n  File x\ntorch.distributed.DistBackendError: {words}"
    )
    if how == "log":
        log = "\n".join(f"[rank0]: {line}" for line in text.splitlines())
        found = of(pod(0), pod(1, code=0), logs={"j-master-0": log})
    else:
        found = of(pod(0, message=failure(0, "DistBackendError", words)), pod(1, code=0))
    assert first_line(found).startswith("Rank 0 (j-master-0) raised ")
    assert first_line(found).endswith(f"DistBackendError: {last}.")
    assert advice in found.message.splitlines()[1]
    assert "lost the connection" not in found.message


@pytest.mark.parametrize("suffix", ["", " (SIGKILL)"])
def test_a_rank_that_was_killed_under_torchrun_is_named_with_its_signal(suffix: str) -> None:
    child = "  rank      : {} (local_rank: {})\n  exitcode  : -{} (pid: 23)" + suffix
    log = "\n".join(
        [
            "ChildFailedError:\nFailures:\n[1]:",
            child.format(2, 0, 15),
            "Root Cause (first observed failure):\n[0]:",
            child.format(3, 1, 9),
        ]
    )
    found = of(pod(0), pod(1), logs={"j-worker-0": log})
    assert first_line(found) == "Rank 3 (j-worker-0) was ended by SIGKILL."
    assert "ran out of memory" in found.message.splitlines()[1]


@pytest.mark.parametrize(
    ("log", "first"),
    [
        ("Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL "
         "watchdog hang.", "NCCL's watchdog hung"),
        ("RuntimeError: Application timeout caused pair closure", "A rank lost the connection"),
        ("rendezvous.api.RendezvousClosedError", "The rendezvous was closed before every process"),
        ("ncclRemoteError: A call failed possibly due to a remote process exiting prematurely.\n"
         "Last error:\nsocketProgress: Connection closed by remote peer j-worker-0<5>",
         "NCCL says: socketProgress: Connection closed by remote peer j-worker-0<5>"),
    ],
)  # fmt: skip
def test_peers_that_are_gone_have_many_words(log: str, first: str) -> None:
    found = of(pod(0), pod(1, code=0), logs={"j-master-0": log})
    assert first_line(found).startswith(first)
    assert "Look at the missing ranks first" in found.message


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("KeyError: 'getpwuid(): uid not found: 1000'", "set USER and HOME in env"),
        ("RuntimeError: received 0 items of ancdata", "fewer loader workers"),
        ("RuntimeError: DataLoader worker (pid(s) 33) exited unexpectedly", "raise memory"),
        ("PermissionError: Access Denied", "output_secret"),
        ("google.auth.exceptions.DefaultCredentialsError: were not found", "output_secret"),
        ('botocore.exceptions.EndpointConnectionError: "http://minio:9000/b"', "does not reach"),
        ("SSLError: Max retries exceeded with url: / (certificate verify failed)", "SSL_CERT_FILE"),
        ("python: can't open file '/workspace/train.py': [Errno 2]", "name its whole path"),
        ("ValueError: environment variable MASTER_ADDR expected, but not set", "with torchrun"),
    ],
)
def test_errors_that_many_programs_meet_come_with_advice(line: str, advice: str) -> None:
    found = of(pod(0), logs={"j-master-0": line})
    assert advice in found.message.splitlines()[1]
