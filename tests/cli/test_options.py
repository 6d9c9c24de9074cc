"""What all commands have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import Result

from kfp_pytorch.cli import main


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.fixture(params=commands(main), ids=lambda named: named[0].replace(" ", "-"))
def command(request: pytest.FixtureRequest) -> click.Command:
    found: click.Command = request.param[1]
    return found


def test_a_command_has_json_for_programs(command: click.Command) -> None:
    assert "--json" in {name for each in command.params for name in each.opts}


def test_a_command_takes_secrets_in_files_alone(command: click.Command) -> None:
    for each in command.params:
        words = {word for name in each.opts for word in name.strip("-").split("-")}
        if words & {"token", "cookie", "password", "secret", "secrets", "key"}:
            assert isinstance(each.type, click.Path), each.opts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["params", "nonsuch"], "There is no pipeline 'nonsuch'"),
        (["compile"], "Name a pipeline"),
        (["compile", "nonsuch.yaml"], "Cannot read nonsuch.yaml"),
        (["upload", "nonsuch", "--host", "http://127.0.0.1:1"], "cannot be reached"),
        (["runs", "list", "--limit", "-1"], "-1 is not in the range"),
        (["runs", "show"], "Missing argument 'RUN'"),
        (["runs", "delete", "x", "--token-file", "/nonsuch"], "cannot read /nonsuch"),
        (["schedule", "apply", "x", "y", "--every", "z"], "'z' is no duration"),
        (["schedule", "nonsuch"], "No such command 'nonsuch'"),
        (["launcher", "install", "-n", "No"], "--namespace is 'No'"),
        (["doctor", "--nonsuch"], "No such option"),
        (["doctor", "--num-nodes", "0"], "num_nodes is 0"),
        (["logs", "--rank", "0"], "Name a RUN"),
        (["run", "x", "--local", "--bad"], "No such option"),
        (["run", "nonsuch", "--local"], "There is no pipeline 'nonsuch'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_with_json_an_error_is_one_object_too(
    cli: Callable[..., Result], arguments: list[str], words: str
) -> None:
    result = cli(*arguments, "--json")
    assert result.exit_code in (1, 2)
    (line,) = result.stdout.splitlines()
    assert words in json.loads(line)["error"]
    assert words in result.stderr.replace("\n", " ")
