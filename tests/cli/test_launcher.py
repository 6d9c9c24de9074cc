"""`kfp-pytorch launcher install`: the ConfigMap that a package asks for, on a local API server."""

import json

import pytest
import yaml
from harness.api_server import start_in_thread
from harness.faults.actions import Forbidden
from harness.faults.plan import Fault

from kfp_pytorch.components import bundle
from kfp_pytorch.launcher.constants import CONFIG_MAP

OTHER = "0" * 64


@pytest.fixture
def server(tmp_path, monkeypatch):
    # What the command sets is taken back.
    monkeypatch.setenv("KUBECONFIG", "")
    (tmp_path / "server").mkdir()
    started = start_in_thread(tmp_path / "server")
    yield started
    started.stop()


@pytest.fixture
def package(mine, cli, tmp_path):
    path = tmp_path / "training.yaml"
    assert cli("compile", f"{mine}:training", "--output", path).exit_code == 0
    return path


@pytest.fixture
def install(cli, server):
    def run(*arguments, namespace="default"):
        kubeconfig = ("--kubeconfig", server.kubeconfig)
        return cli("launcher", "install", *arguments, "-n", namespace, *kubeconfig)

    return run


def installed(server):
    return server.call(server.api.find, CONFIG_MAP, "default", bundle.reference().name)


def test_installs_what_a_package_asks_for(install, server, package):
    result = install(package)
    assert (result.exit_code, result.output) == (
        0,
        f"ConfigMap default/{bundle.reference().name} is installed.\n",
    )
    made = installed(server)
    manifest = yaml.safe_load(bundle.manifest_path().read_text())
    assert made["binaryData"] == manifest["binaryData"]
    assert made["metadata"]["annotations"] == manifest["metadata"]["annotations"]
    assert made["immutable"] is True


def test_without_a_package_installs_this_versions_and_a_second_time_nothing(install, server):
    assert install().exit_code == 0
    result = install()
    assert (result.exit_code, "is there already" in result.output) == (0, True)
    told = json.loads(install("--json").output)
    assert (told["configmap"], told["installed"]) == (bundle.reference().name, False)
    assert installed(server)


def test_says_which_version_has_what_a_package_asks_for(install, server, package):
    wanted = bundle.reference()
    text = package.read_text().replace(f"launcher-{wanted.version}-", "launcher-9.1.2-")
    package.write_text(text.replace(wanted.sha256, OTHER))
    result = install(package)
    assert result.exit_code == 1
    assert "kfp-pytorch-launcher-9.1.2-0000000000, which kfp-pytorch 9.1.2 has" in result.output
    assert "Install kfp-pytorch 9.1.2, from its tag or its wheel" in result.output
    assert installed(server) is None


def test_says_so_where_the_same_version_was_built_from_other_sources(install, package):
    package.write_text(package.read_text().replace(bundle.reference().sha256, OTHER))
    result = install(package)
    assert result.exit_code == 1
    assert "compiled from other sources of the same version" in result.output


def test_a_package_in_another_form_needs_no_configmap(install, server, cli, package):
    cli("compile", package, "--output", package, "--launcher", "image=i")
    result = install(package)
    assert result.exit_code == 1
    assert "No step of" in result.output
    assert installed(server) is None


def test_a_configmap_of_the_name_with_other_content_is_left_alone(install, server):
    metadata = {"name": bundle.reference().name, "namespace": "default"}
    content = {"metadata": metadata, "binaryData": {"launcher": "eA=="}}
    server.call(server.api.create, CONFIG_MAP, content)
    result = install()
    assert result.exit_code == 1
    assert f"kubectl delete configmap {bundle.reference().name} -n default" in result.output
    assert installed(server)["binaryData"] == {"launcher": "eA=="}


def test_the_servers_refusal_is_what_a_person_reads(install):
    result = install(namespace="nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.output
    assert "Traceback" not in result.output


def test_who_may_not_create_it_is_told_what_an_administrator_does_instead(install, server):
    server.faults.add(Fault(Forbidden(user="alice@x.org"), "create", "*/configmaps", times=None))
    result = install()
    assert result.exit_code == 1
    assert result.output.startswith(
        "Error: Missing permission: alice@x.org may not create configmaps in namespace 'default'.\n"
    )
    assert "`kubectl apply --server-side -n default -f manifests/launcher.yaml`" in result.output
    assert "rbac" not in result.output.partition("The server said")[0]
    assert installed(server) is None


@pytest.mark.parametrize("namespace", ["", " ", "A B", "a/b", "None"])
def test_a_namespace_that_is_none_is_refused_before_the_server_is_asked(install, server, namespace):
    result = install(namespace=namespace)
    assert result.exit_code == 2
    assert f"--namespace is {namespace!r}" in result.output
    assert not server.faults.requests


@pytest.mark.slow
def test_a_server_that_is_away_is_waited_for_and_that_is_said(install, server):
    server.go_away(20.0)
    result = install()
    assert result.exit_code == 0
    assert "; trying for up to 60 s" in result.stderr
    assert installed(server)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.yaml", None, ": No such file or directory. Name a compiled pipeline; "),
        ("binary.yaml", b"\x87\xff\x00", " is not a compiled pipeline: it is no text in UTF-8. "),
        ("zeros.yaml", b"\x00" * 9, " is damaged: it cannot be read as YAML: unacceptable char"),
        ("cut.yaml", b"root:\n  dag: [a,", "found '<stream end>' (line 2, column 11).\nCompile"),
        ("deep.yaml", b"[" * 9000, "be read as YAML: it is nested too deep.\nCompile it"),
        ("other.yaml", b"kind: Pod", " is not a compiled pipeline: it has no pipelineInfo and"),
        ("edited.yaml", b"pipelineInfo: 3\nroot: 4", " is damaged: pipelineInfo is 3, where a map"),
        ("package.txt", b"root: {}", " is neither a compiled pipeline, NAME.yaml, nor a FILE.py"),
    ],
)
@pytest.mark.parametrize("command", [("launcher", "install", "-n", "x"), ("compile",)])
def test_a_file_that_is_no_package_is_named_with_what_is_wrong(
    cli, tmp_path, command, name, content, words
):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    result = cli(*command, path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert isinstance(result.exception, SystemExit)
    assert str(path) in result.stderr
    assert words in result.stderr
    assert "unicode string" not in result.stderr


def test_a_kubeconfig_that_is_none_is_named(cli, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text("[" * 9000)
    result = cli("launcher", "install", "-n", "x", "--kubeconfig", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"The kubeconfig {path} cannot be read: " in result.stderr
