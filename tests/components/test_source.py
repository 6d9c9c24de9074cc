"""`source(…)`: code that travels in a pipeline package."""

# No `from __future__ import annotations`: kfp reads the annotations.
import bisect
import importlib.util
import json
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
    (tmp_path / "long.py").write_bytes(b"#" * (1 << 20))
    assert len(read("source", source(tmp_path / "long.py")).files["long.py"]) == 1 << 20
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


def test_links_to_files_travel_as_files_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    (tmp_path / "shared.py").write_text("SHARED = 1\n")
    (folder / "shared.py").symlink_to("../shared.py")
    assert source(folder) == {"files": {"package/shared.py": "SHARED = 1\n"}}
    for name, target in (("broken.py", "absent.py"), ("loop.py", "loop.py")):
        (folder / name).symlink_to(target)
        with pytest.raises(ValueError, match=rf"/{name}', which is neither a file"):
            source(folder)
        (folder / name).unlink()


def test_files_of_any_name_and_content_travel_byte_for_byte(tmp_path: Path) -> None:
    contents = {
        "my package/a/x.py": b"A = 1\n",
        "my package/b/x.py": b"B = 1\n",
        "my package/b/\u00fcbung 1.py": "WORD = 'ä'\n".encode("latin-1"),
        "my package/b/u\u0308bung 1.py": "WORD = 'ä'\n".encode(),
        "my package/empty.py": b"",
        "my package/mark.txt": b"\xef\xbb\xbf{{$.inputs}}\0\x1b[0m\r",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    given = source(tmp_path / "my package")
    assert "{{" not in json.dumps(given)
    assert read("source", given).files == contents
    for bad in (" blank.py", "new\nline.py", "not-utf-8-\udcff.py"):
        (tmp_path / "my package" / bad).write_bytes(b"")
        with pytest.raises(ValueError, match="a path of source"):
            source(tmp_path / "my package")
        (tmp_path / "my package" / bad).unlink()


def test_the_largest_that_a_step_can_be_handed_is_taken_and_a_byte_more_is_not(
    tmp_path: Path,
) -> None:
    file, noise = tmp_path / "noise.bin", random.Random(1).randbytes(70_000)

    def packed(size: int) -> int:
        file.write_bytes(noise[:size])
        try:
            return len(source(file)["packed"])
        except ValueError:
            return 0

    sizes = range(60_000, 70_000)
    most = sizes[bisect.bisect_left(sizes, True, key=lambda size: not packed(size)) - 1]
    assert 89_900 < packed(most) <= 90_000
    file.write_bytes(noise[: most + 1])
    with pytest.raises(
        ValueError, match=r"is 90,\d\d\d bytes when compressed; .*at most 90,000.*pvc://"
    ):
        source(file)


def test_as_many_files_as_a_job_may_have_travel_and_one_more_does_not(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number}.py").touch()
    assert len(read("source", source(tmp_path)).files) == 1000
    (tmp_path / "1000.py").touch()
    with pytest.raises(
        ValueError, match=r"more than 1,000 files, the limit\. Put the code on a claim"
    ):
        source(tmp_path)


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
