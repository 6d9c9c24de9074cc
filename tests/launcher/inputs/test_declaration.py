"""A component's inputs are declared once, as the fields of a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.declaration import declare, inputs_of, parse


@dataclass(frozen=True)
class Inputs:
    url: str = declare(readers.text, None)
    count: int = declare(partial(readers.integer, minimum=1), 3)
    words: tuple[str, ...] = declare(readers.strings, [])
    options: dict[str, Any] = declare(readers.mapping, {})
    share: float = declare(readers.number, 0.5)
    quick: bool = declare(readers.boolean, False)
    settings: Any = declare(readers.mapping, None, type_name="dsl.TaskConfig")


def test_the_type_in_the_signature_follows_from_the_default() -> None:
    assert {name: item.type for name, item in inputs_of(Inputs).items()} == {
        "url": "str",
        "count": "int",
        "words": "list[Any]",
        "options": "dict[str, Any]",
        "share": "float",
        "quick": "bool",
        "settings": "dsl.TaskConfig",
    }


@pytest.mark.parametrize("unset", ["", " ", "None", "null", None, [], {}])
def test_an_unset_input_gets_its_default(unset: Any) -> None:
    names = [name for name in inputs_of(Inputs) if name != "url"]
    assert parse(Inputs, "c", {"url": "u", **dict.fromkeys(names, unset)}) == parse(
        Inputs, "c", {"url": "u"}
    )


def test_each_value_is_read_by_its_own_reader() -> None:
    inputs = parse(Inputs, "c", {"url": "u", "count": "4", "words": [1.0, True], "quick": "TRUE"})
    assert (inputs.count, inputs.words, inputs.quick) == (4, ("1", "true"), True)
    with pytest.raises(InputError, match="count is 0; it must be from 1"):
        parse(Inputs, "c", {"count": 0})


def test_an_unknown_input_is_refused_with_the_component_s_name() -> None:
    with pytest.raises(InputError, match="a_component has no input 'urls'"):
        parse(Inputs, "a_component", {"urls": "u"})
