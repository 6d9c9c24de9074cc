from __future__ import annotations

import gc
import hashlib
import io
from pathlib import Path

import pytest

from kfp_pytorch.training.checkpoint.checksum_writer import MeasuredFile


def test_a_file_is_measured_and_says_nothing_when_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From Python 3.13 on this prints what earlier versions pass over.
    said: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", said.append)
    with (tmp_path / "file").open("wb") as file:
        measured = MeasuredFile(file)
        measured.write(b"abc")
    assert measured.facts() == {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    measured.flush()
    del measured
    gc.collect()
    assert said == []


def test_the_first_error_of_a_file_is_raised_again() -> None:
    class Full(io.BytesIO):
        def write(self, _data: object) -> int:
            raise OSError(28, "No space left on device")

    measured = MeasuredFile(Full())
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            measured.write(b"abc")
