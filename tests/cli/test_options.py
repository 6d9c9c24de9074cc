"""What all commands have in common."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

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
