"""`source(…)`: code that travels in a pipeline package."""

# No `from __future__ import annotations`: kfp reads the annotations.
import importlib.util
import os
import random
import re
from pathlib import Path

import pytest
from kfp import compiler, dsl
from kfp.dsl import graph_component

import kfp_pytorch
from kfp_pytorch.components import pytorch_job, source
from kfp_pytorch.launcher.inputs.source import read

TEXT = "import torch\r\nprint('{{$.inputs}}')\n"


def package(folder: Path) -> Path:
    made = folder / "my_package"
    (made / "models").mkdir(parents=True)
    (made / "__init__.py").write_bytes(b"")
    (made / "train.py").write_text("print('train')\n")
    (made / "models" / "net.bin").write_bytes(b"\0\xff")
    (made / "__pycache__").mkdir()
    (made / "__pycache__" / "train.pyc").write_bytes(b"\0")
    (made / ".git").mkdir()
    return made


def test_a_file_and_a_package_travel_byte_for_byte_and_the_same_way_twice(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(TEXT.encode())
    assert read("source", source(file)).files == {"train.py": TEXT.encode()}
    folder = package(tmp_path)
    first = source(str(folder))
    for path in folder.rglob("*.py"):
        os.utime(path, (1, 1))
    assert source(folder) == first
    assert read("source", first).files == {
        "my_package/__init__.py": b"",
        "my_package/models/net.bin": b"\0\xff",
        "my_package/train.py": b"print('train')\n",
    }


def test_a_large_text_travels_compressed(tmp_path: Path) -> None:
    text = "".join(f"value_{n} = {n}\n" for n in range(10_000))
    (tmp_path / "train.py").write_text(text)
    given = source(tmp_path / "train.py")
    assert list(given) == ["packed"]
    assert len(given["packed"]) < 90_000 < len(text)
    assert read("source", given).files == {"train.py": text.encode()}


def test_what_a_step_cannot_be_handed_is_refused_with_sizes_and_way_out(tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(random.Random(1).randbytes(100_000))
    with pytest.raises(ValueError, match=r"bytes when compressed; .*90,000.*pvc://CLAIM"):
        source(tmp_path / "noise.bin")
    (tmp_path / "long.py").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ValueError, match=r"1,048,577 bytes.*holds at most 1,048,576"):
        source(tmp_path / "long.py")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        source(tmp_path / "absent.py")
    with pytest.raises(ValueError, match="read none from a bucket"):
        source("s3://bucket/code")


def test_a_link_has_its_own_name_and_one_to_a_folder_above_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("print(1)\n")
    (tmp_path / "link").symlink_to("real")
    assert source(tmp_path / "link") == {"files": {"link/train.py": "print(1)\n"}}
    (tmp_path / "real" / "up").symlink_to("..")
    with pytest.raises(ValueError, match="a link to a folder above it"):
        source(tmp_path / "link")


def test_a_folder_of_far_more_than_code_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "weights.pt").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"/weights\.pt' alone 1,099,511,627,776"):
        source(tmp_path)
    for nothing in ("", None, 3):
        with pytest.raises(ValueError, match="give a Python file, a folder or pvc://"):
            source(nothing)  # type: ignore[arg-type]


def test_it_compiles_as_a_constant_of_a_task(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TEXT)

    @dsl.pipeline(name="with-source")
    def pipeline():
        pytorch_job(
            image="torch", command="torchrun -m train", source=source(tmp_path / "train.py")
        )

    target = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(target))
    first = target.read_bytes()
    compiler.Compiler().compile(pipeline, str(target))
    assert target.read_bytes() == first


def test_the_examples_of_the_page_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path)
    monkeypatch.chdir(tmp_path)
    page = Path(kfp_pytorch.__file__).resolve().parents[1] / "docs" / "code-without-an-image.md"
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for number, example in enumerate(examples):
        file = tmp_path / f"example_{number}.py"
        file.write_text(example)
        module = importlib.util.spec_from_file_location(file.stem, file)
        made = importlib.util.module_from_spec(module)
        module.loader.exec_module(made)
        for found in vars(made).values():
            if isinstance(found, graph_component.GraphComponent):
                compiler.Compiler().compile(found, str(tmp_path / "pipeline.yaml"))
    assert examples
