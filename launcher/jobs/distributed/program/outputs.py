"""What rank 0 returned: collected, made small enough for the termination message, uploaded."""

from __future__ import annotations

import base64
import importlib
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

from .common import CLIENTS

# The kubelet may cut a message that is longer; and what of one is not a component's outputs.
MESSAGE_LIMIT, _ENVELOPE = 2048, 120
LIMIT = MESSAGE_LIMIT - _ENVELOPE
# Whose content KFP's UI shows; a text that is longer never fits.
_SHOWN, _LONGEST_SHOWN = ("system.HTML", "system.Markdown"), 200_000


def collected(given: dict[str, Any], place: Path) -> dict[str, Any]:
    """Collects what the function returned and wrote.

    Raises ValueError: KFP's backend would refuse it.
    """
    outputs = given["outputs"]
    found = json.loads(Path(outputs["outputFile"]).read_text(encoding="utf-8"))
    files = {name: Path(each["outputFile"]) for name, each in outputs["parameters"].items()}
    result: dict[str, Any] = {
        "parameters": found.get("parameterValues") or {},
        "files": {name: text(name, file) for name, file in files.items() if file.is_file()},
        "artifacts": {},
    }
    for name, artifacts in (found.get("artifacts") or {}).items():
        artifact, own = artifacts["artifacts"][0], str(place / name)
        elsewhere = artifact.get("custom_path")
        # One with another URI is an input that is handed on, or lies where the function says.
        if artifact["uri"] == own and elsewhere and Path(elsewhere).exists():
            move(Path(elsewhere), place / name)
        result["artifacts"][name] = {
            "metadata": artifact.get("metadata") or {},
            "written": (place / name).exists(),
            **({} if artifact["uri"] == own else {"uri": artifact["uri"]}),
        }
    check_values(result)
    return result


def text(name: str, file: Path) -> str:
    """Reads what the function wrote as an output parameter. Raises ValueError: it is no text."""
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"output {name!r} is no text in UTF-8: {error}") from None


def check_values(result: dict[str, Any]) -> None:
    """Refuses what KFP's backend takes for no value, by the output's name."""
    for part in ("parameters", "artifacts"):
        for name, value in result[part].items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise ValueError(
                    f"output {name!r} is or holds a number that is not finite, which KFP refuses; "
                    "leave it out or return it as a text"
                ) from None
    for name, artifact in result["artifacts"].items():
        for key, value in artifact["metadata"].items():
            if value is None:
                raise ValueError(
                    f"the metadata {key!r} of output {name!r} is None, which KFP refuses; leave it "
                    "out"
                )


def shown(given: dict[str, Any], place: Path) -> dict[str, str]:
    """The texts that KFP's UI shows, by output, the shortest first."""
    found = {}
    for name, artifacts in given["outputs"]["artifacts"].items():
        title = artifacts["artifacts"][0].get("type", {}).get("schemaTitle")
        file = place / name
        if title in _SHOWN and file.is_file() and file.stat().st_size <= _LONGEST_SHOWN:
            found[name] = file.read_bytes().decode(errors="replace")
    return dict(sorted(found.items(), key=lambda each: len(each[1])))


def small(result: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """Writes what rank 0 returned for the message, with as many of the texts as fit.

    Raises ValueError: it does not fit without them.
    """
    message = fitting(result)
    if message is None:
        raise ValueError(too_large(result))
    for name, content in texts.items():
        own = result["artifacts"].get(name, {})
        fuller = {**result["artifacts"], name: {**own, "content": content}}
        found = fitting({**result, "artifacts": fuller})
        if found is None:
            break
        result["artifacts"], message = fuller, found
    return message


def fitting(result: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a result as it is, or compressed; None where it is too long all the same."""
    if len(json.dumps(result)) <= LIMIT:
        return result
    compressed = {"packed": packed(result)}
    return compressed if len(json.dumps(compressed)) <= LIMIT else None


def packed(value: Any) -> str:
    """Writes JSON compressed, as a text."""
    return base64.b64encode(zlib.compress(json.dumps(value).encode(), 9)).decode()


def too_large(result: dict[str, Any]) -> str:
    """Says what is wrong with a result that no message holds, with the name of the largest."""
    sizes = {
        name: len(packed(value))
        for part in ("parameters", "files", "artifacts")
        for name, value in result[part].items()
    }
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        "the output parameters and the metadata of output artifacts are "
        f"{len(json.dumps(result)):,} bytes of JSON together, {len(packed(result)):,} when "
        f"compressed, {largest!r} alone {sizes[largest]:,}; a distributed component hands on at "
        f"most {LIMIT:,}. Write what is larger into an output artifact"
    )


def check_bucket(output: str) -> None:
    """Refuses a bucket that this pod cannot write to, before anything is computed."""
    try:
        system, path = importlib.import_module("fsspec.core").url_to_fs(f"{output}/outputs/.try")
        system.pipe_file(path, b"")
        system.rm_file(path)
    except Exception as error:
        raise RuntimeError(
            f"the output artifacts go to {output}, and this pod cannot write there: "
            f"{type(error).__name__}: {error}. {CLIENTS}, and credentials as output_secret; or "
            "give output_uri='pvc://CLAIM/path'"
        ) from error


def upload(place: Path, names: list[str], output: str) -> None:
    """Copies what rank 0 wrote into the job's folder in a bucket."""
    core = importlib.import_module("fsspec.core")
    for name in names:
        system, path = core.url_to_fs(f"{output}/outputs/{name}")
        if system.exists(path):
            # Of an earlier attempt.
            system.rm(path, recursive=True)
        source = place / name
        found = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
        here = [str(each) for each in found]
        # Of two lists neither is taken for a pattern, or for a folder to put another into.
        system.put(here, [path + each[len(str(source)) :] for each in here])


def move(source: Path, target: Path) -> None:
    """Moves a file or folder, also to another file system."""
    remove(target)
    shutil.move(str(source), str(target))


def remove(path: Path) -> None:
    """Removes what an earlier attempt left."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
