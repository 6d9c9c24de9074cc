"""Placeholders of KFP that a cluster leaves as they are are found before it does."""

import pytest

WITHIN = """
from kfp import dsl
from kfp.dsl import PIPELINE_JOB_ID_PLACEHOLDER as ID
from kfp_pytorch.components import pytorch_job

@dsl.pipeline
def within(run: str):
    pytorch_job(image="i", GIVEN)

@dsl.pipeline
def p():
    within(run=RUN)
"""


@pytest.mark.parametrize(
    ("given", "run", "name"),
    [
        ("args=[f'--run={ID}']", "'r'", "args"),
        ("env={'RUN': ID}", "'r'", "env"),
        ("hyperparameters={'run': run}", "f'run-{ID}'", "hyperparameters"),
    ],
)
def test_a_placeholder_that_only_a_local_run_would_fill_in_is_refused_with_the_way_out(
    tmp_path, cli, given, run, name
):
    lost, mended = tmp_path / "lost.py", tmp_path / "mended.py"
    lost.write_text(WITHIN.replace("GIVEN", given).replace("RUN)", f"{run})"))
    refused = cli("compile", f"{lost}:p", "--output", tmp_path)
    assert refused.exit_code == 1
    assert f"task pytorch-job: {name} holds '{{{{$.pipeline_job_uuid}}}}'" in refused.output
    assert "Hand it as that to a pipeline of its own (@dsl.pipeline)" in refused.output
    mended.write_text(WITHIN.replace("GIVEN", given.replace("ID", "run")).replace("RUN)", "ID)"))
    result = cli("compile", f"{mended}:p", "--output", tmp_path)
    assert result.exit_code == 0, result.output


def test_a_placeholder_that_is_set_on_a_task_is_refused_with_the_input_that_takes_it(tmp_path, cli):
    text = WITHIN.replace("RUN)", "ID)").replace("GIVEN)", ").set_env_variable('RUN', ID)")
    (tmp_path / "set.py").write_text(text)
    refused = cli("compile", f"{tmp_path}/set.py:p", "--output", tmp_path)
    assert refused.exit_code == 1
    assert "set_env_variable holds '{{$.pipeline_job_uuid}}'" in refused.output
    assert "use its parameter in the input env" in refused.output
