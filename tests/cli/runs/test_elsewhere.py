"""`kfp-pytorch run --kubeconfig`: the steps run here, their jobs on a cluster elsewhere."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import urllib3
from harness import without_ipv4

from kfp_pytorch.cli.runs import clusters, forward, screen, summary
from kfp_pytorch.local import lifecycle
from kfp_pytorch.local.kfp import commands, step

PIPELINES = Path(__file__).parents[1] / "small_pipelines.py"


@pytest.fixture
def api_server(tmp_path):
    """An API server whose proxy answers for one service; it keeps what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            server.asked.append((self.path, self.headers["Authorization"], body))
            known = self.path.startswith("/api/v1/namespaces/team/services/digits-predictor:80/")
            content = b'{"predictions": [3]}' if known else b'{"kind": "Status"}'
            self.send_response(200 if known else 403)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def kubeconfig(tmp_path, api_server):
    path = tmp_path / "kubeconfig"
    cluster = {"server": f"http://127.0.0.1:{api_server.server_port}"}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "a-token"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(config))
    return path


def ask(url):
    with urllib3.PoolManager(retries=False) as pool:
        answer = pool.request("POST", url, body=b'{"instances": [1]}')
    return answer.status, answer.data


def test_a_service_is_asked_through_the_api_servers_proxy(kubeconfig, api_server):
    with forward.forwarding(kubeconfig) as services:
        url = f"{services}/team/digits-predictor/80/v1/models/digits:predict"
        assert ask(url) == (200, b'{"predictions": [3]}')
    path = "/api/v1/namespaces/team/services/digits-predictor:80/proxy/v1/models/digits:predict"
    assert api_server.asked == [(path, "Bearer a-token", '{"instances": [1]}')]


def test_services_are_forwarded_to_on_a_machine_without_ipv4(kubeconfig):
    program = (
        "import sys; from pathlib import Path; from kfp_pytorch.cli.runs import forward\n"
        "with forward.forwarding(Path(sys.argv[1])) as url: print(url)"
    )
    url = without_ipv4.python("-c", program, str(kubeconfig)).strip()
    assert url.startswith("http://[::1]:")


def test_the_servers_refusal_is_handed_on(kubeconfig):
    with forward.forwarding(kubeconfig) as services:
        assert ask(f"{services}/other/digits/80/x")[0] == 403


def test_a_server_that_is_away_is_unavailable(kubeconfig, api_server):
    config = json.loads(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    kubeconfig.write_text(json.dumps(config))
    with forward.forwarding(kubeconfig) as services:
        status, content = ask(f"{services}/team/digits-predictor/80/x")
    assert status == 503
    assert b"http://127.0.0.1:9 cannot be reached" in content


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://d.team.svc.cluster.local/v1/m:predict", "http://here/team/d/80/v1/m:predict"),
        ("http://d.team.svc:8080/v1/m:predict", "http://here/team/d/8080/v1/m:predict"),
        ("http://d.team.svc", "http://here/team/d/80/"),
        ("http://d.example.com/v1/m:predict", "http://d.example.com/v1/m:predict"),
        ("http://127.0.0.1:80/v1/m:predict", "http://127.0.0.1:80/v1/m:predict"),
    ],
)
def test_a_step_asks_a_service_of_the_cluster_by_a_url_that_reaches_it(url, asked):
    given = {"inputs": {"parameterValues": {"url": url}}}
    command = ["python3", "--executor_input", json.dumps(given)]
    command += ["--function_to_execute", "kserve_predict"]
    made = step._with_reachable_url(command, "http://here")
    assert commands.executor_input(made)["inputs"]["parameterValues"]["url"] == asked
    assert step._with_reachable_url(command, "") == command


def test_an_endpoint_elsewhere_is_not_said_to_have_ended():
    told = summary.empty("p", "succeeded", "") | {"endpoint": "http://digits"}
    assert "ended with this command" in screen.text(told, 1.0, kept=False)
    assert "ended with this command" not in screen.text(told, 1.0, kept=True)


def test_the_run_has_a_way_to_the_services(kubeconfig, tmp_path):
    with clusters.cluster(tmp_path / "root", kubeconfig, "a-run", keep=False) as target:
        assert target.services.startswith("http://127.0.0.1:")


def test_nothing_of_a_local_cluster_is_needed(kubeconfig, tmp_path):
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {lifecycle._MODULES}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from kfp_pytorch.cli import main
from kfp_pytorch.client.packages import checks, find
checks.check(find.find_one("train_and_serve"))
main(["run", "{PIPELINES}:greeting", "--kubeconfig", "{kubeconfig}", "--root", "{tmp_path}/root"])
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_kubeconfig_that_cannot_be_used_ends_the_run_before_its_first_step(cli, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")
    arguments = ("--kubeconfig", broken, "--root", tmp_path / "root", "--json")
    result = cli("run", f"{PIPELINES}:telling", "-p", "name=x", *arguments)
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["steps"] == []
    assert f"The kubeconfig {broken} cannot be read: while parsing" in answer["error"]
    assert "Error: The kubeconfig" in result.stderr
