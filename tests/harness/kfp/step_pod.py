"""A step's pod on this machine, and an HTTPS server that is the API server to it.

The step runs the very source of a compiled pipeline; in it the paths of the pod's files are those
of a folder, and the digest of the launcher that of the one which the server has.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kfp_pytorch.components import bundle, forms

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/"
MESSAGE = "/dev/termination-log"
MODULE = "kfp_pytorch.components.metric_gate.component"
FUNCTION = "metric_gate"
TOKEN = "a-token"
# The length of a body that ends with its connection.
ENDLESS = -1


@dataclass(frozen=True)
class Answer:
    """What the server answers to one request."""

    status: int = 200
    body: bytes = b""
    length: int | None = None
    # How the body is sent.
    pieces: Callable[[bytes], Iterable[bytes]] = lambda body: [body]

    @classmethod
    def of(cls, status: int, **content: object) -> Answer:
        """An object as JSON."""
        return cls(status, json.dumps(content).encode())

    @classmethod
    def with_launcher(cls, archive: bytes) -> Answer:
        """The ConfigMap of a launcher."""
        data = {"launcher": base64.b64encode(archive).decode()}
        return cls.of(200, kind="ConfigMap", binaryData=data)


@dataclass
class Server:
    """An API server that answers from a script: the last answer is repeated."""

    port: int
    script: list[Answer] = field(default_factory=list)
    before: Callable[[int], object] = lambda _: None
    asked: list[tuple[str, str | None]] = field(default_factory=list)


def certificate(folder: Path, name: str = "server") -> None:
    """Make a certificate for this machine, which is its own CA."""
    options = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=a "
        f"-addext subjectAltName=IP:127.0.0.1,IP:::1 -keyout {name}.key -out {name}.crt"
    )
    subprocess.run(["openssl", *options.split()], check=True, capture_output=True, cwd=folder)


@contextlib.contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[Server]:
    """Serve with the certificate of a folder."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = len(made.asked)
            made.asked.append((self.path, self.headers["Authorization"]))
            made.before(number)
            answer = made.script[min(number, len(made.script) - 1)]
            self.send_response(answer.status)
            if answer.length != ENDLESS:
                self.send_header("Content-Length", str(answer.length or len(answer.body)))
            self.end_headers()
            # The step may end, or close the connection, before it has all.
            with contextlib.suppress(OSError):
                for piece in answer.pieces(answer.body):
                    self.wfile.write(piece)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    class Listener(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    http = Listener((host, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    http.socket = context.wrap_socket(http.socket, server_side=True)
    made = Server(http.server_port)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@dataclass
class Pod:
    """A step's container: a service account, a termination log, and the program."""

    folder: Path
    environ: dict[str, str]
    wanted: bytes
    python: tuple[str, ...] = (sys.executable,)

    @classmethod
    def make(cls, folder: Path, port: int, wanted: bytes, name: str = "pod") -> Pod:
        """Make a pod whose step wants a launcher.

        Args:
            folder: Where the server's certificate lies.
            port: The server's port.
            wanted: The launcher.
            name: A folder below the other.
        """
        environ = {"PATH": os.environ["PATH"], "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
        pod = cls(folder / name, environ, wanted)
        pod.environ["KUBERNETES_SERVICE_PORT"] = str(port)
        # Whatever these name, the API server is asked itself.
        pod.environ |= {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
        pod.account.mkdir(parents=True)
        (pod.account / "token").write_text(f"{TOKEN}\n")
        (pod.account / "namespace").write_text("team")
        shutil.copy(folder / "server.crt", pod.account / "ca.crt")
        pod.message.touch()
        return pod

    @property
    def account(self) -> Path:
        """Where its service account is mounted."""
        return self.folder / "account"

    @property
    def program(self) -> Path:
        """The step's source, as KFP writes it."""
        return self.folder / "step.py"

    @property
    def message(self) -> Path:
        """Its termination log."""
        return self.folder / "message"

    def start(self, before: str = "", after: str = "") -> subprocess.Popen[str]:
        """Start the step, with lines of Python around its source."""
        source = before + forms.configmap_source(MODULE, FUNCTION) + after
        self.program.write_text(self.rewritten(source))
        return subprocess.Popen(
            [*self.python, str(self.program)],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rewritten(self, source: str) -> str:
        """The source of a step with this pod's paths and launcher."""
        digest = hashlib.sha256(self.wanted).hexdigest()
        for there, here in {
            ACCOUNT: f"{self.account}/",
            MESSAGE: str(self.message),
            bundle.reference().sha256: digest,
        }.items():
            assert source.count(there) == 1
            source = source.replace(there, here)
        return source

    def run(self) -> tuple[int, str, float]:
        """Run it to its end: the exit code, what it wrote, and the seconds that it took."""
        began = time.monotonic()
        process = self.start()
        output, errors = process.communicate(timeout=90)
        return process.returncode, output + errors, time.monotonic() - began
