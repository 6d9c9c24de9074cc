"""What a script exports, and the predictor that serves it."""

from __future__ import annotations

import json

from harness.predictions import answer_v1

from kfp_pytorch.serving import export, predictor

CLASSIFIER = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.last = torch.nn.Linear(3, 2)

    def forward(self, features):
        self.newest = self.last(self.norm(features))
        return self.newest

model = Net()
model(torch.ones(2, 3))
script.export(model, torch.arange(15.0).view(5, 3), classes=["no", "yes"], output="logits")
assert model.training
script.finish({"accuracy": 0.9})
"""


def served(job):
    return predictor.Predictor(export.load(job.folder / "out" / "export"))


def test_a_classifier_is_served_and_its_samples_are_the_examples(run_torch):
    job = run_torch(CLASSIFIER)
    message = job.message()
    assert message["export"]["model"]["inputs"] == [
        {"name": "features", "shape": [-1, 3], "datatype": "FP32"}
    ]
    assert message["export"]["model"]["classes"] == ["no", "yes"]
    assert len(message["samples"]) == 5
    loaded = served(job)
    loaded.warm_up()
    answer = answer_v1(loaded, {"instances": [sample["instance"] for sample in message["samples"]]})
    known = [sample["prediction"] for sample in message["samples"]]
    assert [each["class"] for each in answer["predictions"]] == known
    assert answer["predictions"][0]["label"] in {"no", "yes"}


def test_a_model_of_named_inputs_and_outputs_and_free_lengths_is_served(run_torch):
    job = run_torch(
        """
        class Tagger(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.nn.Embedding(10, 4)

            def forward(self, mask=None, input_ids=None):
                states = self.table(input_ids)
                return {"states": states, "pooled": states.mean(dim=1)}

        model = torch.nn.parallel.DataParallel(Tagger().double())
        length = torch.export.Dim("length", min=1, max=16)
        ids = {"input_ids": torch.randint(10, (1, 5))}
        script.export(model, ids, output="pooled", dynamic={1: length})
        """
    )
    described = json.loads((job.folder / "out/export/model.json").read_text())
    assert described["inputs"] == [{"name": "input_ids", "shape": [-1, -1], "datatype": "INT64"}]
    assert described["outputs"] == [{"name": "pooled", "shape": [-1, 4], "datatype": "FP64"}]
    loaded = served(job)
    loaded.warm_up()
    assert len(answer_v1(loaded, {"instances": [[1, 2, 3]]})["predictions"][0]) == 4


REFUSED = [
    ("torch.nn.Bilinear(2, 2, 1)", "[torch.ones(2, 2)] * 2", "there are 2 example inputs"),
    ("torch.nn.LSTM(2, 2)", "torch.ones(2, 2, 2)", "the model returns a tuple"),
    ("torch.nn.Linear(2, 2).bfloat16()", "torch.ones(2, 2).bfloat16()", "torch.bfloat16"),
    ("torch.nn.Linear(2, 2)", "torch.ones(3, 2), classes='abc'", "there are 3 classes"),
    ("torch.nn.Flatten(0)", "torch.ones(3, 2)", "its first dimension must be the batch"),
    ("torch.nn.LogSoftmax(1)", "torch.full((2, 2), float('nan'))", "is not finite"),
    ("torch.nn.Linear(2, 2)", "torch.ones(0, 2)", "at least one input"),
    ("Branches()", "torch.ones(2, 2)", "torch.export cannot export the model"),
    ("torch.nn.Linear(2, 2)", "torch.ones(2, 2).numpy()", "is a ndarray and must be a tensor"),
    ("torch.nn.Linear(2, 2)", "torch.ones(2, 3)", "fails for the example input of the shape"),
    ("torch.jit.script(torch.nn.ReLU())", "torch.ones(2, 2)", "is not of torch.jit"),
    (
        "torch.nn.Linear(2, 2)",
        "torch.ones(2, 2), preprocessing={'mean': torch.ones(2)}",
        "preprocessing cannot be written as JSON",
    ),
    ("torch.nn.Linear(2, 2)", "torch.ones(2, 2), output='o' * 129", "has at most 128: give a"),
    # The last one: it sets the version of torch.
    ("Old().model", "torch.ones(2, 2)", "torch 2.5.1 exports programs"),
]
REFUSING = """
class Branches(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Old:
    def __init__(self):
        self.model = torch.nn.Linear(2, 2)
        torch.__version__ = torch.torch_version.TorchVersion("2.5.1")

for call in CALLS:
    try:
        eval(call)
    except Exception as error:
        print(f"{call}: {type(error).__name__}:", *str(error).split())
"""


def test_a_model_that_would_not_be_served_is_refused_with_the_reason(run_torch):
    calls = [f"script.export({model}, {example})" for model, example, _ in REFUSED]
    job = run_torch(f"CALLS = {calls!r}\n{REFUSING}")
    for call, (_, _, words) in zip(calls, REFUSED, strict=True):
        (said,) = (line for line in job.output.splitlines() if line.startswith(f"{call}: "))
        assert said.startswith(f"{call}: ExportError: ")
        assert words in said
    assert not (job.folder / "out" / "export" / "model.json").exists()


UNSTEADY = """
class Counts(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return super().forward(x) + self.calls

class Whole(torch.nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0)

class Drops(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x)

for model in (Counts(), Whole(), Drops()):
    script.export(model, torch.arange(8.0).reshape(4, 2) + 1)
    print("samples", open(f"{script.folder()}/export/samples.json").read())
"""


def test_a_model_that_answers_differently_from_one_request_to_the_next_has_no_samples(run_torch):
    job = run_torch(UNSTEADY)
    assert job.output.count("samples []") == 3
    assert job.output.count("an input's answer differs") == 3


DAMAGED = """
import shutil
from pathlib import Path

script.export(torch.nn.Linear(2, 2), torch.ones(2, 2))
there = Path(script.folder(), "export")
kept = shutil.copytree(there, there.with_name("kept"))
for name in ("model.pt2", "samples.json", "model.json"):
    for change in (Path.unlink, lambda path: path.write_text("{}")):
        change(there / name)
        try:
            script.finish()
        except Exception as error:
            print(type(error).__name__, "names it" if name in str(error) else error)
        shutil.copytree(kept, there, dirs_exist_ok=True)
script.report({"loss": 1})
(there / name).unlink()
"""


def test_a_program_after_the_one_that_exported_does_not_lose_the_export(run_torch):
    job = run_torch("script.export(torch.nn.Linear(2, 2), torch.ones(2, 2))")
    exported = job.message()["export"]
    then = "script.report({'accuracy': 0.9})\nscript.save_checkpoint({}, 1)"
    job = run_torch(then, in_container=True)
    assert job.message()["export"] == exported
    assert job.message()["metrics"] == {"accuracy": 0.9}


def test_an_export_that_is_gone_or_changed_fails_the_job(run_torch):
    job = run_torch(DAMAGED, code=1)
    assert job.output.count("ExportError names it") == 6
    error = job.message()["error"]
    assert error["type"] == "ExportError"
    assert "model.json" in error["message"]


FILES = """
import tempfile
from pathlib import Path
from kfp_pytorch.training.errors import ExportError
saved = Path(tempfile.mkdtemp()) / "saved"
(saved / "deep").mkdir(parents=True)
(saved / "config.json").write_text("{}")
(saved / "deep" / "weights").write_bytes(b"abc")
script.export_files(saved, model_format="huggingface", versions={"transformers": "5"})
script.report({"loss": 1})
(saved / "model.json").write_text("{}")
for wrong in ("nowhere", saved):
    try:
        script.export_files(wrong, model_format="huggingface")
    except ExportError as error:
        print(error)
"""


def test_what_another_library_saved_is_exported_as_it_is(run_torch):
    job = run_torch(FILES)
    exported = job.message()["export"]
    short = {"format": "huggingface", "versions": {"transformers": "5"}}
    assert exported["model"] == short
    described = json.loads((job.folder / "out" / "export" / "model.json").read_text())
    assert {name: facts["bytes"] for name, facts in described["files"].items()} == {
        "config.json": 2,
        "deep/weights": 3,
    }
    assert (job.folder / "out" / "export" / "deep" / "weights").read_bytes() == b"abc"
    assert "nowhere is no folder with files" in job.output
    assert "has a file model.json" in job.output
