"""The bootstrap of a step against an HTTPS server on loopback, at the limits that it ships with."""

from __future__ import annotations

import base64
import bz2
import hashlib
import itertools
import json
import shutil
import signal
import socket
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from harness.kfp.step_pod import ENDLESS, MODULE, TOKEN, Answer, Pod, Server, certificate, serving

from kfp_pytorch.components import bundle

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificates with openssl"
)

INSTALL = "kfp-pytorch launcher install PACKAGE -n team"
RBAC = "kubectl apply -n team -f manifests/rbac.yaml"


def small_archive() -> bytes:
    """A package that says that it has started, and from where."""
    program = (
        "import sys\n"
        "def metric_gate(): pass\n"
        "print('started', kfp_pytorch.__file__, kfp_pytorch.VALUE)\n"
    )
    texts = {
        "kfp_pytorch/__init__.py": "VALUE = 'from the ConfigMap'\n",
        "kfp_pytorch/components/__init__.py": "",
        "kfp_pytorch/components/metric_gate/__init__.py": "",
        f"{MODULE.replace('.', '/')}.py": f"import kfp_pytorch\n{program}",
    }
    return bz2.compress(json.dumps([[*texts], [*texts.values()]]).encode())


ARCHIVE = small_archive()


GOOD = Answer.with_launcher(ARCHIVE)
OTHER = Answer.with_launcher(b"x")
NONE = Answer.of(200, kind="ConfigMap")
NAME = bundle.Reference(bundle.reference().version, hashlib.sha256(ARCHIVE).hexdigest()).name
GONE = Answer.of(404, kind="Status", reason="NotFound", message=f'configmaps "{NAME}" not found')
NO_KIND = Answer.of(404, kind="Status", message="the server could not find the requested resource")
WHO = 'User "system:serviceaccount:team:runner" cannot get resource "configmaps"'
FORBIDDEN = Answer.of(403, kind="Status", reason="Forbidden", message=WHO)
UNAUTHORIZED = Answer.of(401, kind="Status", reason="Unauthorized", message="Unauthorized")
STARTING = Answer.of(503, kind="Status", message="the server is starting")
BUSY = Answer.of(429, kind="Status", message="storage is (re)initializing")
PAGE = Answer(200, b"<html>a proxy's page</html>")
PROXY_404 = Answer(404, b"404 page not found")
CUT = Answer(200, GOOD.body[:50], len(GOOD.body))
FLOOD = Answer(200, b"x" * 65536, ENDLESS, itertools.repeat)


def trickle(body: bytes) -> Iterator[bytes]:
    """A byte a second."""
    for byte in body:
        time.sleep(1)
        yield bytes([byte])


SLOW = replace(GOOD, pieces=trickle)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificate(tmp_path)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as made:
        made.script = [GOOD]
        yield made


@pytest.fixture
def pod(folder: Path, server: Server) -> Pod:
    return Pod.make(folder, server.port, ARCHIVE)


def test_the_launcher_comes_from_the_configmap_of_the_pods_own_namespace(pod, server):
    code, output, seconds = pod.run()
    assert (code, "started" in output, "from the ConfigMap" in output) == (0, True, True), output
    assert server.asked == [(f"/api/v1/namespaces/team/configmaps/{NAME}", f"Bearer {TOKEN}")]
    assert seconds < 5


def test_the_api_server_may_have_an_ipv6_address(folder):
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with serving(folder, "::1") as server:
        server.script = [GOOD]
        pod = Pod.make(folder, server.port, ARCHIVE)
        pod.environ["KUBERNETES_SERVICE_HOST"] = "::1"
        code, output, _ = pod.run()
    assert (code, "started" in output) == (0, True), output


@pytest.mark.parametrize("answer", [GONE, OTHER, NONE], ids=["gone", "other", "empty"])
def test_without_its_configmap_a_step_ends_at_once_with_the_command_that_installs_it(
    pod, server, answer
):
    server.script = [answer]
    code, output, seconds = pod.run()
    assert code == 1
    assert INSTALL in output
    assert f"ConfigMap team/{NAME}" in output
    assert pod.message.read_text() == output.strip()
    assert seconds < 3
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [FORBIDDEN, UNAUTHORIZED, STARTING, BUSY, PAGE, PROXY_404, NO_KIND, CUT, FLOOD],
    ids=["403", "401", "503", "429", "a page", "404 of a proxy", "no kind", "cut", "endless"],
)
def test_an_answer_that_does_not_last_is_asked_for_again(pod, server, answer):
    server.script = [answer, answer, GOOD]
    code, output, _ = pod.run()
    assert (code, len(server.asked)) == (0, 3), output


def test_a_server_that_starts_again_is_waited_for(folder, server):
    pod = Pod.make(folder, server.port, ARCHIVE)
    server.script = [FORBIDDEN] * 3 + [STARTING] * 2 + [FORBIDDEN, BUSY, GOOD]
    code, output, _ = pod.run()
    assert (code, len(server.asked)) == (0, 8), output


def test_a_token_that_was_replaced_is_read_again(pod, server):
    def renew(number: int) -> None:
        if number == 0:
            (pod.account / "token").write_text("another")

    server.before, server.script = renew, [UNAUTHORIZED, GOOD]
    assert pod.run()[0] == 0
    assert [token for _, token in server.asked] == [f"Bearer {TOKEN}", "Bearer another"]


def test_causes_that_last_end_the_step_each_after_its_time_and_with_its_words(folder):
    """All at once, for most of it is waiting."""
    certificate(folder, "other")

    def ends(name: str, answer: Answer) -> tuple[int, str, float]:
        with serving(folder) as server:
            server.script = [answer]
            pod = Pod.make(folder, server.port, ARCHIVE, name)
            if name == "untrusted":
                shutil.copy(folder / "other.crt", pod.account / "ca.crt")
            if name == "no-ca":
                (pod.account / "ca.crt").unlink()
            return pod.run()

    cases = {"401": UNAUTHORIZED, "403": FORBIDDEN, "untrusted": GOOD, "no-ca": GOOD}
    with ThreadPoolExecutor(len(cases)) as pool:
        found = dict(zip(cases, pool.map(ends, cases, cases.values()), strict=True))
    for name in ("401", "403"):
        code, output, seconds = found[name]
        assert code == 1
        assert RBAC in output
        assert "launcher install" not in output
        assert 10 <= seconds < 15
    assert "system:serviceaccount:team:runner" in found["403"][1]
    # No permission helps a token that is not accepted.
    assert ["Check " in found[name][1] for name in ("401", "403")] == [True, False]
    for name, words in {"untrusted": "CERTIFICATE_VERIFY_FAILED", "no-ca": "No such file"}.items():
        code, output, seconds = found[name]
        assert code == 1
        assert words in output
        assert "launcher install" not in output
        assert seconds < 8


@pytest.mark.slow
@pytest.mark.parametrize("answer", [STARTING, None], ids=["503", "refused"])
def test_a_server_that_never_answers_ends_the_step_after_a_minute(folder, server, answer):
    server.script = [answer or GOOD]
    pod = Pod.make(folder, server.port if answer else 9, ARCHIVE)
    code, output, seconds = pod.run()
    assert code == 1
    assert "Start the step again" in output
    assert "launcher install" not in output
    assert 60 <= seconds < 66


@pytest.mark.slow
def test_a_minute_is_the_limit_of_all_attempts_together(folder):
    """Of slow bytes, of silence in the handshake, and of refusals with other answers between."""
    cases = {"slow": [SLOW], "silent": [], "in turn": [FORBIDDEN, STARTING] * 40}

    def ends(name: str) -> tuple[int, str, float]:
        with serving(folder) as server, socket.create_server(("127.0.0.1", 0)) as silent:
            server.script = cases[name]
            port = server.port if server.script else silent.getsockname()[1]
            return Pod.make(folder, port, ARCHIVE, name).run()

    with ThreadPoolExecutor(len(cases)) as pool:
        for code, output, seconds in pool.map(ends, cases):
            assert (code, "Start the step again" in output) == (1, True), output
            assert "rbac" not in output
            assert 60 <= seconds < 66


SECRET = "first-line\r\nsecond-line"
ACCOUNTS: dict[str, tuple[Callable[[Pod], object], str]] = {
    "empty CA": (lambda pod: (pod.account / "ca.crt").write_text(""), "no certificate"),
    "text as CA": (lambda pod: (pod.account / "ca.crt").write_text("text"), "no certificate"),
    "no namespace": (lambda pod: (pod.account / "namespace").unlink(), "account/namespace"),
    "two tokens": (lambda pod: (pod.account / "token").write_text(SECRET), "expected 1"),
    "unreadable token": (
        lambda pod: (
            (pod.account / "token").rename(pod.account / "x") and (pod.account / "token").mkdir()
        ),
        "Is a directory",
    ),
    "no host": (lambda pod: pod.environ.pop("KUBERNETES_SERVICE_HOST"), "KUBERNETES_SERVICE_HOST"),
    "full disk": (
        lambda pod: Path(f"{pod.program}.zip").symlink_to("/dev/full"),
        "No space left on device",
    ),
}


def test_what_is_wrong_in_the_pod_itself_ends_the_step_in_seconds_and_shows_no_secret(folder):
    def ends(name: str) -> tuple[Pod, int, str, float]:
        with serving(folder) as server:
            server.script = [GOOD]
            pod = Pod.make(folder, server.port, ARCHIVE, name)
            ACCOUNTS[name][0](pod)
            return pod, *pod.run()

    with ThreadPoolExecutor(len(ACCOUNTS)) as pool:
        for name, (pod, code, output, seconds) in zip(
            ACCOUNTS, pool.map(ends, ACCOUNTS), strict=True
        ):
            assert (code, ACCOUNTS[name][1] in output) == (1, True), output
            assert "Check " in output
            assert pod.message.read_text() == output.strip()
            assert not any(line in output for line in SECRET.split())
            assert seconds < 8


@pytest.mark.parametrize("answer", [STARTING, SLOW], ids=["between attempts", "slow bytes"])
def test_a_signal_ends_the_waiting_with_143(pod, server, answer):
    server.script = [answer]
    process = pod.start()
    until(lambda: server.asked)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=5)
    assert process.returncode == 143
    assert errors == "Stopped by a signal; a job of an earlier try may be alive.\n"
    assert pod.message.read_text() == errors.strip()


@pytest.mark.parametrize(
    ("answer", "expected"), [(STARTING, 143), (GONE, 1)], ids=["a signal", "no ConfigMap"]
)
def test_the_exit_code_is_the_same_when_nobody_reads_the_output(pod, server, answer, expected):
    server.script = [answer]
    process = pod.start()
    process.stdout.close()
    process.stderr.close()
    until(lambda: server.asked)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == expected
    assert pod.message.read_text()


def test_a_pod_without_a_token_says_so_at_once(pod):
    (pod.account / "token").unlink()
    pod.python = (sys.executable, "-S")
    code, output, seconds = pod.run()
    assert (code, output) == (1, "No service account token, and no kfp_pytorch installed.\n")
    assert seconds < 3


def test_without_a_token_the_installed_package_is_used(pod, server):
    (pod.account / "token").unlink()
    pod.environ["_KFP_RUNTIME"] = "true"
    code, output, _ = pod.run()
    assert (code, output, server.asked) == (0, "", [])


def test_a_path_in_the_environment_goes_first(pod, server):
    path = pod.folder / "mine.zip"
    with zipfile.ZipFile(path, "w") as target:
        for name, text in zip(*json.loads(bz2.decompress(ARCHIVE)), strict=True):
            target.writestr(name, text)
    pod.environ["KFP_PYTORCH_LAUNCHER"] = str(path)
    code, output, _ = pod.run()
    assert (code, server.asked) == (0, [])
    assert f"started {path}/kfp_pytorch/__init__.py" in output


@pytest.mark.parametrize("content", [None, b"PK damaged"], ids=["missing", "damaged"])
@pytest.mark.parametrize("installed", [False, True], ids=["alone", "another one installed"])
def test_a_path_without_the_launcher_is_named_with_its_variable(pod, server, content, installed):
    path = pod.folder / "mine.zip"
    if content:
        path.write_bytes(content)
    pod.environ |= {"KFP_PYTORCH_LAUNCHER": str(path), "_KFP_RUNTIME": "true"}
    pod.python = (sys.executable, *([] if installed else ["-S"]))
    code, output, _ = pod.run()
    assert (code, server.asked) == (1, [])
    assert f"KFP_PYTORCH_LAUNCHER={path}" in output
    assert pod.message.read_text() == output.strip()


@pytest.fixture
def gate(pod, server):
    """A pod that runs metric_gate with the real launcher and KFP's executor."""
    shipped = yaml.safe_load(bundle.manifest_path().read_text())
    pod.wanted = base64.b64decode(shipped["binaryData"][bundle.KEY])
    server.script = [Answer.with_launcher(pod.wanted)]
    metrics = {"name": "m", "uri": "", "type": {"schemaTitle": "system.Metrics"}}
    artifacts = {"metrics": {"artifacts": [metrics | {"metadata": {"accuracy": 0.9}}]}}
    value = {"outputFile": str(pod.folder / "value")}
    outputs = {"parameters": {"value": value}, "outputFile": str(pod.folder / "output.json")}
    parameters = {"metric": "accuracy", "minimum": 0.5}
    given = {
        "inputs": {"parameterValues": parameters, "artifacts": artifacts},
        "outputs": outputs,
    }
    pod.environ["_KFP_RUNTIME"] = "true"
    pod.python = (
        sys.executable, "-c", "import sys; from kfp.dsl.executor_main import executor_main;"
        "sys.argv[1:] = ['--component_module_path', sys.argv[1], '--function_to_execute',"
        f"'metric_gate', '--executor_input', {json.dumps(given)!r}]; executor_main()",
    )  # fmt: skip
    return pod


def test_a_real_step_runs_with_the_launcher_that_it_has_read(gate):
    code, output, _ = gate.run()
    assert code == 0, output
    written = json.loads((gate.folder / "output.json").read_text())
    assert written["parameterValues"] == {"value": 0.9}


def test_a_signal_while_the_launcher_is_read_waits_for_the_step(gate, server):
    """The step's own handler takes it."""
    process = None

    def stop(_: int) -> None:
        until(lambda: process is not None)
        process.send_signal(signal.SIGTERM)

    server.before = stop
    process = gate.start()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143, errors
    assert errors.endswith("Stopped by a signal.\n")


def until(ready: Callable[[], object], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)
