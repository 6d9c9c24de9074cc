"""The input `source`: files of a package, or a folder of a claim."""

from __future__ import annotations

import base64
import bz2
import json
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.source import LIMIT, Source, check, read
from kfp_pytorch.launcher.inputs.storage import Location

TEXT = 'print(\'$HOME `x` \\d\', """\r\n""")\n\tä\n'


def test_files_arrive_byte_for_byte_plain_and_packed() -> None:
    files = {"train.py": TEXT, "package/data.bin": {"base64": "AP8="}}
    packed = base64.b64encode(bz2.compress(json.dumps(files).encode())).decode()
    expected = {"train.py": TEXT.encode(), "package/data.bin": b"\0\xff"}
    assert read("source", {"files": files}).files == expected
    assert read("source", {"packed": packed}).files == expected


def test_a_claim_is_mounted_in_the_place_of_files() -> None:
    found = read("source", {"uri": "pvc://code/team/project"})
    assert found == Source(claim=Location("pvc", "code", "team/project"))
    assert found
    assert not read("source", {})


def test_the_digest_is_of_paths_and_bytes_and_not_of_their_order() -> None:
    first, second = Source({"a": b"1", "b": b"2"}), Source({"b": b"2", "a": b"1"})
    assert first.digest == second.digest
    assert first.digest != Source({"a": b"12", "b": b""}).digest


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"files": {"../x.py": ""}}, "'..' cannot be a folder's name"),
        ({"files": {"/x.py": ""}}, "has a file at '/x.py'"),
        ({"files": {"a": "", "a/b.py": ""}}, "'a' as a file and as a folder"),
        ({"files": {"x.py": 3}}, "must be a text"),
        ({"files": {"x.py": {"base64": "§"}}}, "is not base64"),
        ({"files": {"x.py": "\ud800"}}, "no text that UTF-8 can hold"),
        ({"packed": "AAAA"}, "is damaged (OSError)"),
        ({"uri": "s3://bucket/code"}, "Copy it to a claim first"),
        ({"uri": "code/train.py"}, "must begin with pvc://CLAIM"),
        ({"train.py": "print()"}, "has the keys train.py; make it with source("),
        ("train.py", "source"),
    ],
)
def test_what_cannot_be_is_refused_by_name(value: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        read("source", value)
    assert words in refused.value.message


def test_files_that_no_configmap_holds_are_refused_with_size_limit_and_way_out() -> None:
    check("source", {"all.py": LIMIT})
    with pytest.raises(InputError) as refused:
        check("source", {"large.py": LIMIT, "small.py": 1})
    for words in ("1,048,577 bytes", "'large.py' alone 1,048,576", "at most 1,048,576", "pvc://"):
        assert words in refused.value.message
    with pytest.raises(InputError, match="more than 1,000 files, the limit"):
        check("source", {f"{n}.py": 0 for n in range(1001)})
