"""Jobs that read what earlier steps made."""

from kfp import dsl

from kfp_pytorch.components import pytorch_job

IMAGE = "python:3.12-slim"

# Adds the numbers in the files and folders that it is told of.
ADD = """
import json, os, pathlib, sys

def numbers(place):
    path = pathlib.Path(place)
    files = path.rglob("*.txt") if path.is_dir() else [path]
    return [int(word) for file in files for word in file.read_text().split()]

told = json.loads(os.environ["KFP_PYTORCH_DATASETS"])
assert os.environ["KFP_PYTORCH_DATASET"] == next(iter(told.values()))["uri"]
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
assert given == {name: of["uri"] for name, of in told.items()}, (given, told)
assert all(of["metadata"]["made_by"] == "a step" for of in told.values()), told
output = pathlib.Path(os.environ["KFP_PYTORCH_OUTPUT"])
output.mkdir(parents=True, exist_ok=True)
(output / "own.txt").write_text("1000")
total = sum(sum(numbers(place)) for place in given.values())
assert total == int(os.environ["TOTAL"]), total
"""


@dsl.component(base_image="python", install_kfp_package=False)
def make_file(text: str, data: dsl.Output[dsl.Dataset]):
    import pathlib

    data.metadata["made_by"] = "a step"
    pathlib.Path(data.path).write_text(text)


@dsl.component(base_image="python", install_kfp_package=False)
def make_folder(numbers: str, data: dsl.Output[dsl.Artifact]):
    import pathlib

    data.metadata["made_by"] = "a step"
    pathlib.Path(data.path).mkdir(parents=True)
    for number in numbers.split():
        pathlib.Path(data.path, f"{number}.txt").write_text(number)


@dsl.component(base_image="python", install_kfp_package=False)
def point_at(folder: str, data: dsl.Output[dsl.Dataset]):
    import pathlib

    data.metadata.update(made_by="a step", storage_uri=folder)
    pathlib.Path(data.path).write_text(f"The data is in {folder}.")


@dsl.pipeline(name="reading")
def reading():
    one = make_file(text="1 2 3")
    several = make_folder(numbers="10 20")
    first = pytorch_job(
        name="first",
        image=IMAGE,
        command=["python", "-c", ADD],
        args="--dataset={dataset}",
        dataset=one.outputs["data"],
        env={"TOTAL": 6},
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    elsewhere = point_at(folder=first.outputs["folder"])
    pytorch_job(
        name="second",
        image=IMAGE,
        command=["python", "-c", ADD],
        hyperparameters={
            "train": "{dataset.train}",
            "validation": "{dataset.validation}",
            "more": "{dataset.more}",
        },
        dataset={
            "train": one.outputs["data"],
            "validation": several.outputs["data"],
            "more": elsewhere.outputs["data"],
        },
        env={"TOTAL": 1036},
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
