"""train_job as a component: the pipelines of its README."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from kfp_pytorch.client.packages import checks
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.components import train_job

README = Path(inspect.getfile(train_job.python_func)).parent / "README.md"


@pytest.mark.parametrize("name", ["train", "fine_tune"])
def test_the_pipelines_of_the_readme_compile_and_pass_the_checks(name: str, tmp_path: Path) -> None:
    sources = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (source,) = (each for each in sources if f"def {name}(" in each)
    path = tmp_path / "pipeline.py"
    path.write_text(source)
    package = packages.find_one(f"{path}:{name}")
    checks.check(package)
    assert "train-job" in package.spec["root"]["dag"]["tasks"]
