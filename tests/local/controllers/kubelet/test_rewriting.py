"""Paths, names and ports: which of a container's values change on this machine."""

from __future__ import annotations

import subprocess

import pytest

from kfp_pytorch.local.controllers.kubelet.rewriting import Rewriter

SERVICES = {("j-master-0", 23456): 40001, ("db", 5432): 40002, ("web", 80): 40003}


def endpoint(host: str, port: int | None) -> int | None:
    if port is None:
        return 0 if host == "j-master-0" else None
    return SERVICES.get((host, port))


TRANSLATION = Rewriter(
    {"/mnt/out": "/root/claims/c", "/mnt/out/deep": "/root/deep", "/dev/termination-log": "/p/t"},
    {8080: 40010},
    endpoint,
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/mnt/out", "/root/claims/c"),
        ("/mnt/out/a/b", "/root/claims/c/a/b"),
        ("/mnt/out/deep/x", "/root/deep/x"),
        ("/mnt/outside", "/mnt/outside"),
        ("see /mnt/out", "see /mnt/out"),
        ("/dev/termination-log", "/p/t"),
        ("--data=/mnt/out/a", "--data=/root/claims/c/a"),
        ("--data=x=/mnt/out", "--data=x=/mnt/out"),
        ("j-master-0", "127.0.0.1"),
        ("j-master-0:23456", "127.0.0.1:40001"),
        ("--addr=j-master-0:23456", "--addr=127.0.0.1:40001"),
        ("http://web/path?q", "http://127.0.0.1:40003/path?q"),
        ("postgres://db:5432/x", "postgres://127.0.0.1:40002/x"),
        ("db", "db"),
        ("db/x", "db/x"),
        ("db:9999", "db:9999"),
        ("https://example.com/", "https://example.com/"),
        ("", ""),
        ("8080", "8080"),
        ("--batch=8080", "--batch=8080"),
        ("--http_port=8080", "--http_port=40010"),
        ("--port=9090", "--port=9090"),
        ("0.0.0.0:8080", "0.0.0.0:40010"),
        ("--bind=:8080", "--bind=:40010"),
        ("--transport=8080", "--transport=8080"),
        ("import os\nprint('/mnt/out')", "import os\nprint('/mnt/out')"),
    ],
)
def test_a_word_of_the_command_line(given: str, expected: str) -> None:
    assert TRANSLATION.command(["python", given]) == ["python", expected]


def test_a_port_may_follow_its_option() -> None:
    assert TRANSLATION.command(["x", "--port", "8080", "8080"]) == ["x", "--port", "40010", "8080"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("serve /mnt/out --port 8080", "serve /root/claims/c --port 40010"),
        ('cd /x && A="/mnt/out/a b" run', 'cd /x && A="/root/claims/c/a b" run'),
        ("run --port=8080 >/dev/termination-log;", "run --port=40010 >/p/t;"),
        ("exec x --model=/mnt/out/deep/$A", "exec x --model=/root/deep/$A"),
        ("curl http://web/a?b=c", "curl http://127.0.0.1:40003/a?b=c"),
        ("echo 8080 $OUT/mnt/out /mnt/outside", "echo 8080 $OUT/mnt/out /mnt/outside"),
    ],
)
def test_a_script_of_a_shell_is_rewritten_word_by_word(given: str, expected: str) -> None:
    assert TRANSLATION.command(["/bin/sh", "-ec", given]) == ["/bin/sh", "-ec", expected]
    assert TRANSLATION.command(["python", "-c", given]) == ["python", "-c", given]


def test_a_folder_whose_name_means_something_to_a_shell_is_one_word_of_a_script() -> None:
    rewriter = Rewriter({"/mnt": "/a b/ü"}, {}, endpoint)
    script = rewriter.command(["sh", "-c", "printf %s, /mnt/x '/mnt/y'"])
    assert subprocess.run(script, capture_output=True, text=True).stdout == "/a b/ü/x,/a b/ü/y,"


def test_variables_have_paths_and_ports_of_this_machine() -> None:
    given = {
        "OUT": "/mnt/out/a",
        "PORT": "8080",
        "HTTP_PORT": "8080",
        "NUMBER": "8080",
        "REPORT": "8080",
        "MASTER_ADDR": "j-master-0",
        "MASTER_PORT": "23456",
    }
    assert TRANSLATION.variables(given) == {
        "OUT": "/root/claims/c/a",
        "PORT": "40010",
        "HTTP_PORT": "40010",
        "NUMBER": "8080",
        "REPORT": "8080",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "40001",
    }


def test_the_port_of_a_master_elsewhere_stays() -> None:
    given = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456"}
    assert TRANSLATION.variables(given) == given


def test_paths_of_data_sets_are_found_in_their_json() -> None:
    told = (
        '{"a": {"uri": "/mnt/out/a", "metadata": {"at": "/mnt/outside"}}, "b": {"uri": "s3://b"}}'
    )
    assert TRANSLATION.variables({"KFP_PYTORCH_DATASETS": told}) == {
        "KFP_PYTORCH_DATASETS": told.replace("/mnt/out/a", "/root/claims/c/a")
    }
