"""Runs a component's function in every process of a job; lies in the pods beside the function.

A program of its own: it needs torch and kfp, and nothing of this project. Without arguments it is
the container's entry point, which installs what the component asks for, starts torchrun and writes
the termination message; with `rank` it is one process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).parent
SETTINGS = "kfp_pytorch_distributed.json"
RANKS = "KFP_PYTORCH_RANKS"
# The kubelet may cut what is longer.
MESSAGE_LIMIT = 2048
# What of a message is not a component's outputs.
_ENVELOPE = 120
TERMINATED = 143


def main() -> int:
    """Runs all processes of this node. Returns the container's exit code."""
    settings = read_settings()
    with tempfile.TemporaryDirectory(prefix="kfp-pytorch-") as scratch:
        folder = Path(scratch)
        try:
            environ = installed(settings["install"], folder)
        except subprocess.CalledProcessError as error:
            what = " ".join(error.cmd[error.cmd.index("install") + 1 :])
            write_failure(
                -1, "InstallError", f"pip could not install what the component asks for: {what}", ""
            )
            return 1
        environ[RANKS] = scratch
        code, stopped = run_ranks(environ)
        return conclude(folder, code, stopped)


def read_settings() -> dict[str, Any]:
    """What the step says of the component."""
    found: dict[str, Any] = json.loads((HERE / SETTINGS).read_text(encoding="utf-8"))
    return found


def installed(commands: list[list[str]], folder: Path) -> dict[str, str]:
    """Installs packages into a folder of this pod; returns the environment that has them."""
    environ = {**os.environ, "_KFP_RUNTIME": "true", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    prefix = folder / "packages"
    for words in commands:
        # The image's own may not be writable, and on a machine of several pods it is everybody's.
        command = [sys.executable, "-m", "pip", "install", f"--prefix={prefix}", *words]
        subprocess.run(command, env=environ, check=True)
        scheme = sysconfig.get_preferred_scheme("prefix")
        base = {"base": str(prefix), "platbase": str(prefix)}
        places = {sysconfig.get_path(each, scheme, base) for each in ("purelib", "platlib")}
        given = [environ[name] for name in ("PYTHONPATH",) if environ.get(name)]
        environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*sorted(places), *given]))
    return environ


def run_ranks(environ: dict[str, str]) -> tuple[int, bool]:
    """Runs torchrun, which reads PET_*; returns its exit code, and whether SIGTERM came."""
    # torchelastic removes this file before it writes, which fails for a mounted one.
    environ.pop("TORCHELASTIC_ERROR_FILE", None)
    command = [sys.executable, "-m", "torch.distributed.run", __file__, "rank"]
    process = subprocess.Popen(command, env=environ, start_new_session=True)
    received: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not received:
            process.send_signal(signal.SIGTERM)
        received.append(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    return process.wait(), bool(received)


def conclude(folder: Path, code: int, stopped: bool) -> int:
    """Writes the termination message; returns the container's exit code."""
    if stopped:
        write_failure(-1, "Terminated", "asked to stop", "")
        return TERMINATED
    if code == 0:
        result = folder / "result.json"
        # Of a node without rank 0 there is nothing to say.
        if result.is_file():
            write_message(json.loads(result.read_text(encoding="utf-8")))
        return 0
    records = [json.loads(each.read_text(encoding="utf-8")) for each in folder.glob("error-*.json")]
    if records:
        first = min(records, key=lambda record: float(record["time"]))
        write_failure(
            first["rank"], first["type"], first["message"], first["traceback"], first["time"]
        )
    else:
        write_failure(
            -1, "ExitCode", "a process ended without a Python error; the log says more", ""
        )
    return 1


def rank_main() -> int:
    """Runs the function in this process. Returns its exit code."""
    rank, folder = int(os.environ["RANK"]), Path(os.environ[RANKS])
    settings = read_settings()
    try:
        found = call(settings, rank)
        if rank == 0:
            (folder / "result.json").write_text(json.dumps(found), encoding="utf-8")
        leave_group()
    except Exception as error:
        text = users_traceback(error)
        print(text, file=sys.stderr, flush=True)
        record = {
            "rank": rank,
            "time": time.time(),
            "type": type(error).__name__,
            "message": str(error),
            "traceback": text,
        }
        (folder / f"error-{rank}.json").write_text(json.dumps(record), encoding="utf-8")
        return 1
    return 0


def call(settings: dict[str, Any], rank: int) -> dict[str, Any]:
    """Calls the function as KFP would; returns the message of a success."""
    output = os.environ["KFP_PYTORCH_OUTPUT"]
    in_bucket = "://" in output
    if rank == 0 and in_bucket and settings["files"]:
        check_bucket(output)
    scratch = Path(tempfile.mkdtemp(prefix="outputs-", dir=os.environ[RANKS]))
    # The job's folder belongs to one process. What others write to their paths is left behind.
    place = Path(output) / "outputs" if rank == 0 and not in_bucket else scratch / "outputs"
    place.mkdir(parents=True, exist_ok=True)
    given = executor_input(settings["executor_input"], place, scratch)
    for name in given["outputs"]["artifacts"]:
        remove(place / name)
    function = getattr(load_component(), settings["function"])
    executor = importlib.import_module("kfp.dsl.executor")
    executor.Executor(executor_input=given, function_to_execute=function).execute()
    if rank:
        return {}
    outputs = collected(given, place)
    if in_bucket:
        upload(place, [n for n, each in outputs["artifacts"].items() if each["written"]], output)
    return {
        "version": 1,
        "status": "succeeded",
        "metrics": {},
        "world_size": int(os.environ["WORLD_SIZE"]),
        "outputs": outputs,
    }


def executor_input(given: dict[str, Any], place: Path, scratch: Path) -> dict[str, Any]:
    """KFP's description of the step, with the places of this process."""
    datasets = json.loads(os.environ.get("KFP_PYTORCH_DATASETS", "{}"))
    for artifacts in given["inputs"].get("artifacts", {}).values():
        for artifact in artifacts["artifacts"]:
            kind, _, where = artifact["uri"].partition(":")
            if kind == "kfp-pytorch-file":
                artifact["uri"] = str(HERE / where)
            elif kind == "kfp-pytorch-dataset":
                artifact["uri"] = datasets[where]["uri"]
    outputs = given["outputs"]
    outputs["outputFile"] = str(scratch / "executor_output.json")
    for name, artifacts in outputs["artifacts"].items():
        artifacts["artifacts"][0]["uri"] = str(place / name)
    for name, parameter in outputs["parameters"].items():
        parameter["outputFile"] = str(scratch / "parameters" / name)
    return given


def load_component() -> Any:
    """The module with the component's function, as KFP makes it."""
    spec = importlib.util.spec_from_file_location(
        "ephemeral_component", HERE / "ephemeral_component.py"
    )
    if spec is None or spec.loader is None:
        raise ImportError("ephemeral_component.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def collected(given: dict[str, Any], place: Path) -> dict[str, Any]:
    """What rank 0 returned, small enough for the termination message.

    Raises ValueError: it is not.
    """
    outputs = given["outputs"]
    found = json.loads(Path(outputs["outputFile"]).read_text(encoding="utf-8"))
    files = {name: Path(each["outputFile"]) for name, each in outputs["parameters"].items()}
    result: dict[str, Any] = {
        "parameters": found.get("parameterValues") or {},
        "files": {n: p.read_text(encoding="utf-8") for n, p in files.items() if p.is_file()},
        "artifacts": {},
    }
    for name, artifacts in (found.get("artifacts") or {}).items():
        artifact, own = artifacts["artifacts"][0], str(place / name)
        elsewhere = artifact.get("custom_path")
        if elsewhere and Path(elsewhere).exists():
            move(Path(elsewhere), place / name)
        result["artifacts"][name] = {
            "metadata": artifact.get("metadata") or {},
            "written": (place / name).exists(),
            **({} if artifact["uri"] == own else {"uri": artifact["uri"]}),
        }
    check_size(result)
    return result


def check_size(result: dict[str, Any]) -> None:
    """Refuses outputs that the termination message cannot hold, by the name of the largest."""
    sizes = {}
    for part in ("parameters", "files", "artifacts"):
        for name, value in result[part].items():
            try:
                sizes[name] = len(json.dumps(value, allow_nan=False).encode())
            except ValueError:
                raise ValueError(
                    f"output {name!r} is or holds a number that is not finite, which KFP refuses; "
                    "leave it out or return it as a text"
                ) from None
    size, limit = len(json.dumps(result).encode()), MESSAGE_LIMIT - _ENVELOPE
    if size > limit:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"the output parameters and the metadata of output artifacts are {size:,} bytes of "
            f"JSON together, {largest!r} alone {sizes[largest]:,}; a distributed component hands "
            f"on at most {limit:,}. Write what is larger into an output artifact"
        )


def check_bucket(output: str) -> None:
    """Refuses a bucket that this image has no client for, before anything is computed."""
    scheme = output.partition("://")[0]
    try:
        importlib.import_module("fsspec").get_filesystem_class(scheme)
    except ImportError as error:
        raise RuntimeError(
            f"the output artifacts go to {output}, and this image cannot write there: {error}. Add "
            "fsspec and s3fs or gcsfs to packages_to_install, or give output_uri='pvc://CLAIM/path'"
        ) from error


def upload(place: Path, names: list[str], output: str) -> None:
    """Copies what rank 0 wrote into the job's folder in a bucket."""
    core = importlib.import_module("fsspec.core")
    for name in names:
        system, path = core.url_to_fs(f"{output}/outputs/{name}")
        source = place / name
        system.put(str(source), path, recursive=source.is_dir())


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


def leave_group() -> None:
    """Leaves the process group that the function joined and did not leave."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def users_traceback(error: BaseException) -> str:
    """A traceback from the component's own function on."""
    where = error.__traceback__
    own = where
    while (
        own is not None and Path(own.tb_frame.f_code.co_filename).name != "ephemeral_component.py"
    ):
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own or where))


def write_failure(rank: int, kind: str, message: str, text: str, at: float = 0.0) -> None:
    """Writes a failure; of a long traceback the end."""
    for length in (1500, 1000, 600, 300, 0):
        error = {
            "rank": rank,
            "time": at or time.time(),
            "type": kind,
            "message": message[:400],
            "traceback": text[-length:] if length else "",
        }
        report = {"version": 1, "status": "failed", "error": error}
        if len(json.dumps(report).encode()) <= MESSAGE_LIMIT:
            break
    write_message(report)


def write_message(report: dict[str, Any]) -> None:
    """Writes the termination message in place: it is a mounted file."""
    path = os.environ.get("KFP_PYTORCH_TERMINATION_LOG", "/dev/termination-log")
    with Path(path).open("w", encoding="utf-8") as file:
        file.write(json.dumps(report))


if __name__ == "__main__":
    sys.exit(rank_main() if sys.argv[1:] == ["rank"] else main())
