"""The storage initializer: what it downloads, and with whose credentials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfp_pytorch.local.controllers.kserve import storage_initializer


def test_files_are_downloaded_by_their_paths_under_the_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "bucket" / "model"
    (source / "deep").mkdir(parents=True)
    (source / "model.json").write_text("{}")
    (source / "deep" / "w").write_text("w")
    monkeypatch.setattr(storage_initializer, "SCHEMES", ("file",))
    count = storage_initializer.download(f"file://{source}", tmp_path / "to")
    assert count == 2
    assert (tmp_path / "to" / "deep" / "w").read_text() == "w"
    with pytest.raises(storage_initializer.DownloadError, match="No model found in"):
        storage_initializer.download(f"file://{tmp_path}/none", tmp_path / "to")


def test_the_credentials_of_storage_config_reach_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = {"access_key_id": "k", "secret_access_key": "s", "endpoint_url": "http://h:1"}
    monkeypatch.setenv("STORAGE_CONFIG", json.dumps(config))
    options = storage_initializer._options()
    assert (options["key"], options["endpoint_url"]) == ("k", "http://h:1")
    monkeypatch.setenv("STORAGE_OVERRIDE_CONFIG", json.dumps({"endpoint_url": "http://h:2"}))
    options = storage_initializer._options()
    assert (options["key"], options["endpoint_url"]) == ("k", "http://h:2")
    monkeypatch.setenv("STORAGE_OVERRIDE_CONFIG", json.dumps({"anonymous": "true"}))
    assert storage_initializer._options()["anon"] is True
    monkeypatch.setenv("STORAGE_OVERRIDE_CONFIG", "")
    monkeypatch.setenv("STORAGE_CONFIG", "")
    assert storage_initializer._options() == {}
