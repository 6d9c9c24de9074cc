"""InferenceServices of the local controllers, with a model server that starts fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kfp_pytorch.launcher.constants import CLAIM, INFERENCE_SERVICE
from kfp_pytorch.local.controllers.kubernetes.status import condition

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "default"

Object = dict[str, Any]

# A model server: answers with what lies in the model's folder, once it has started.
SERVER = """
import argparse, pathlib, http.server, signal, threading
p = argparse.ArgumentParser()
for name in ("model_name", "model_dir", "http_port"):
    p.add_argument(f"--{name}")
a = p.parse_args()
text = (pathlib.Path(a.model_dir) / "weights").read_text()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{a.model_name} {text}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(a.http_port)), Handler)
server.daemon_threads = False  # what is in flight is answered
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever(0.05)
server.server_close()
"""


def quick_runtime() -> Object:
    made = dict(yaml.safe_load((ROOT / "manifests" / "serving-runtime.yaml").read_text()))
    made["metadata"]["namespace"] = NAMESPACE
    container = made["spec"]["containers"][0]
    container["command"] = ["python", "-c", SERVER]
    container["readinessProbe"] = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    for probe in ("livenessProbe", "startupProbe"):
        container.pop(probe)
    container["resources"] = {}
    return made


def service(uri: str = "pvc://models/digits/export", **predictor: Any) -> Object:
    model = {"modelFormat": {"name": "kfp-pytorch"}, "storageUri": uri}
    model |= predictor.pop("model", {})
    metadata = {"name": "digits", "namespace": NAMESPACE, "uid": "u-1", "labels": {"a": "b"}}
    return {"metadata": metadata, "spec": {"predictor": {"model": model, **predictor}}}


def put_model(cluster: Any, path: str, text: str) -> str:
    """Puts a model on the claim `models`; returns its URI."""
    if cluster.api.find(CLAIM, NAMESPACE, "models") is None:
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        meta = {"name": "models", "namespace": NAMESPACE}
        cluster.api.create(CLAIM, {"metadata": meta, "spec": spec})
    folder = cluster.root / "claims" / NAMESPACE / "models" / path
    folder.mkdir(parents=True)
    (folder / "weights").write_text(text)
    return f"pvc://models/{path}"


def create(cluster: Any, uri: str, **predictor: Any) -> None:
    made = service(uri, **predictor)
    del made["metadata"]["uid"]
    cluster.api.create(INFERENCE_SERVICE, made)


async def until_ready(cluster: Any) -> Object:
    def holds(obj: Object) -> bool:
        return condition(obj, "Ready").get("status") == "True"

    found: Object = await cluster.until(INFERENCE_SERVICE, "digits", holds)
    return found
