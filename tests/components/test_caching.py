"""KFP's cache knows a step's inputs, neither what is in them nor what the step does with them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler

from kfp_pytorch import components
from kfp_pytorch.components import interfaces

COMPONENTS = sorted(each.name for each in interfaces.INTERFACES)


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_that_was_compiled_alone_is_not_taken_from_the_cache_either(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "alone.yaml"
    component: Any = getattr(components, name)
    compiler.Compiler().compile(component, str(path))
    spec = next(yaml.safe_load_all(path.read_text()))
    (task,) = spec["root"]["dag"]["tasks"].values()
    assert not task["cachingOptions"].get("enableCache", False)
