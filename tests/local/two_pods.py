"""Runs a job of two pods, of which one connects to the other, on a cluster in the folder given."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.local import client, lifecycle

MASTER = """
import os, socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
socket.create_server(address, family=family).accept()[0].sendall(b"hello")
"""
WORKER = """
import os, socket, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
while True:
    try:
        assert socket.create_connection(address).recv(5) == b"hello"
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
"""


def replica(code: str) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "python", "command": ["python", "-c", code]}
    template = {"spec": {"containers": [container]}}
    return {"replicas": 1, "restartPolicy": "Never", "template": template}


def main(root: Path) -> None:
    cluster = lifecycle.start_owned(root)
    print(cluster.url, cluster.kubeconfig.read_text())
    spec = {"pytorchReplicaSpecs": {"Master": replica(MASTER), "Worker": replica(WORKER)}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "two"}}
    jobs = client.path(PYTORCHJOB, "default")
    client.request(cluster.url, "POST", jobs, {**job, "spec": spec}, token=cluster.token)
    ended: set[str] = set()
    while not ended:
        time.sleep(0.1)
        found = client.request(cluster.url, "GET", f"{jobs}/two", token=cluster.token)
        conditions = found.get("status", {}).get("conditions", [])
        ended = {c["type"] for c in conditions if c["status"] == "True"} & {"Succeeded", "Failed"}
    print(*ended)
    lifecycle.stop(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
