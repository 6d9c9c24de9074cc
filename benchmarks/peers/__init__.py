"""The waits of the public SDKs, each in an environment of its own on the benchmark's server.

Their packages do not go together with each other, so uv makes an environment for each and throws
it away. The scripts beside this module run there; a YAML file for each has the objects of its job.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from harness.faults.plan import Request
from harness.hands import until

from benchmarks.cluster import FOREVER, Cluster, Play
from benchmarks.steps import cpu_s
from kfp_pytorch.launcher.constants import CLUSTER_TRAINING_RUNTIME, POD, PYTORCHJOB, TRAINJOB
from kfp_pytorch.local.processes import guard, guarded

HERE = Path(__file__).parent
NAME = "merely-runs"
_KINDS = {kind.kind: kind for kind in (POD, PYTORCHJOB, TRAINJOB, CLUSTER_TRAINING_RUNTIME)}


@dataclass(frozen=True)
class Peer:
    script: str  # the name of its script, and of its namespace
    package: str  # what to install
    call: str  # what it calls
    an_hour: int  # the requests that its source makes in an hour, for where it cannot be installed


PEERS = (
    Peer("kubeflow_training", "kubeflow-training==1.9.4", "wait_for_job_conditions", 240),
    Peer("kubeflow_trainer", "kubeflow==0.5.0", "wait_for_job_status", 7200),
)


class Waiting:
    """A peer that waits for a job which merely runs."""

    def __init__(self, peer: Peer, cluster: Cluster, factor: float) -> None:
        self.peer = peer
        self._cluster = cluster
        self.namespace = peer.script.replace("_", "-")
        cluster.stage(self.namespace, Play(lambda: FOREVER))
        script = HERE / f"{peer.script}.py"
        for obj in yaml.safe_load_all(script.with_suffix(".yaml").read_text()):
            kind = _KINDS[obj["kind"]]
            if kind is not CLUSTER_TRAINING_RUNTIME:
                obj["metadata"]["namespace"] = self.namespace
            cluster.server.call(cluster.server.api.create, kind, obj)
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "uv"
        words = [uv, "run", "--quiet", "--no-project", "--python", sys.executable]
        words += ["--with", peer.package, "python", str(script)]
        words += [str(cluster.kubeconfig(self.namespace)), self.namespace, NAME, str(factor)]
        self._process = guarded.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def begun(self) -> bool:
        """Whether it could be installed, and waits."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "waiting":
            self.stop()
            return False
        until(self.requests, 30.0)
        return True

    def requests(self, since: float = 0.0) -> list[Request]:
        ours = self._cluster.requests(self.namespace, since)
        if self.peer.script != "kubeflow_trainer":
            return ours
        runtimes = f"/{CLUSTER_TRAINING_RUNTIME.plural}/"
        server = self._cluster.server
        return ours + [r for r in server.requests if r.time >= since and runtimes in r.path]

    def cpu_s(self) -> float:
        for pid in guard.descendants(self._process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1:2] == [str(HERE / f"{self.peer.script}.py").encode()]:
                return cpu_s(pid)
        self._process.terminate()
        _, text = self._process.communicate()
        raise RuntimeError(f"{self.peer.package} ended early: {text}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
