"""Outputs that KFP would hand on as nothing, or as a literal placeholder, are refused by name."""

import pytest

pytestmark = pytest.mark.usefixtures("quick_yaml")

FILE = """
from kfp import dsl
from kfp_pytorch.components import pytorch_job

component = dsl.component(base_image="python", install_kfp_package=False)

@component
def make(data: dsl.Output[dsl.Dataset]) -> str:
    return ""

@component
def use(word: str = "", table: dict = {}):
    pass

@dsl.pipeline(name="p")
def p(n: int = 1):
    BODY
"""


@pytest.fixture
def compiled(cli, tmp_path):
    def compiled(body):
        (tmp_path / "p.py").write_text(FILE.replace("BODY", body))
        return cli("compile", f"{tmp_path}/p.py:p", "--output", tmp_path)

    return compiled


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "use(table={'data': make().outputs['data']})",
            "use.inputs.parameters.pipelinechannel--make-data comes from the output 'data' of task "
            "make, which is an artifact, and KFP would hand on no value. Give it to an input for",
        ),
        (
            "use(word=f\"a-{make().outputs['data']}\")",
            "use.inputs.parameters.word holds the output 'data' of task make where KFP puts no",
        ),
        ("use(table={f'{n}': 1})", "use.inputs.parameters.table holds 'n' where KFP puts no value"),
        (
            "use().set_env_variable('DATA', f\"{make().outputs['data']}\")",
            "exec-use.container.env[0] holds the output 'data' of task make where KFP puts no",
        ),
        (
            "use(word='w', table={'a': make().outputs['Output']}).ignore_upstream_failure()",
            "use has an output of task make within a text, dict or list, and ignore_upstream_fail",
        ),
        (
            "pytorch_job(image='i', args=[make().outputs['data']])",
            "TypeError: pytorch-job: args[0] holds output 'data' of task make, an artifact",
        ),
    ],
)
def test_it_is_refused_with_its_place_and_the_way_out(compiled, body, said):
    result = compiled(body)
    assert result.exit_code == 1
    assert said in result.output


@pytest.mark.parametrize(
    "body",
    [
        "use(word=make().outputs['Output'], table={}).ignore_upstream_failure()",
        "use(word=make().outputs['Output'], table={'n': n, 'word': make().outputs['Output']})",
        "pytorch_job(image='i', dataset={'a': make().outputs['data']}, args=['{dataset.a}'])",
    ],
)
def test_what_kfp_does_hand_on_is_compiled(compiled, body):
    result = compiled(body)
    assert result.exit_code == 0, result.output


def test_a_data_set_that_the_job_does_not_get_is_found_in_its_arguments(compiled):
    body = "pytorch_job(image='i', dataset={'a': make().outputs['data']}, args=['{dataset.b}'])"
    result = compiled(body)
    assert result.exit_code == 1
    assert "args[0] has {dataset.b}, and the job got no data set 'b'. It got: a." in result.output


def test_an_import_from_where_kfp_cannot_read_is_told(compiled):
    source = "dsl.importer(artifact_uri='pvc://c/data', artifact_class=dsl.Dataset).output"
    result = compiled(f"pytorch_job(image='i', dataset={source})")
    assert result.exit_code == 0, result.output
    assert "its dataset is imported from 'pvc://c/data', where KFP on a cluster" in result.stderr


def test_an_argument_of_the_wrong_kind_is_told_with_its_name_and_its_line(compiled):
    result = compiled("pytorch_job(image='i', num_nodes='two')")
    assert result.exit_code == 1
    assert "TypeError: pytorch-job: num_nodes must be a whole number, not 'two'" in result.output
    assert "pytorch_job(image='i', num_nodes='two')" in result.output
