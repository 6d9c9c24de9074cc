"""`kfp-pytorch compile`: what it writes, and the mistakes that it finds."""

import re

import pytest
from kfp import compiler, components

from kfp_pytorch.client.packages import find as packages

pytestmark = pytest.mark.usefixtures("quick_yaml")


def test_writes_what_kfps_own_compiler_writes(mine, cli, tmp_path):
    result = cli("compile", f"{mine}:adding", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    written = tmp_path / "out" / "adding.yaml"
    pipeline = packages._of_file(mine)["adding"]
    compiler.Compiler().compile(pipeline, str(tmp_path / "kfp.yaml"))
    assert written.read_bytes() == (tmp_path / "kfp.yaml").read_bytes()
    assert components.load_component_from_file(str(written)).name == "adding"


def test_a_file_without_a_function_gives_every_pipeline_in_it(mine, cli, tmp_path):
    cli("compile", mine, "--output", tmp_path)
    assert {path.name for path in tmp_path.glob("*.yaml")} == {
        "adding.yaml",
        "choosing.yaml",
        "serving.yaml",
        "training.yaml",
    }


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("nodes: int = 2", "nodes: int = 0", "num_nodes is 0; it must be from 1"),
        ('"pvc://claim"', '"ftp://claim"', "ftp://claim"),
        ("image=image", "image=' '", "image is"),
        ('"word": word,', '"word": None or [1],', r"hyperparameters\['word'\]"),
        ("num_nodes=nodes", "num_nodes=nodes, name='--'", "name is '--'"),
        ("num_nodes=nodes", "num_nodes=nodes, cleanup='sometimes'", "cleanup is 'sometimes'"),
        (
            "num_nodes=nodes",
            "num_nodes=nodes, pod_template_patch={'spec': {'nodeSelector': 'gpu'}}",
            "The training pods would be refused.*nodeSelector of type",
        ),
        (
            "num_nodes=nodes",
            "num_nodes=nodes, affinity={'nodeAffinity': {'preferredDuringScheduling"
            "IgnoredDuringExecution': [{'weight': 'heavy'}]}}",
            "affinity.nodeAffinity.*weight",
        ),
        (
            "num_nodes=nodes",
            "num_nodes=nodes, pod_template_patch={'spec': {'containers': [{'name': 'pytorch', "
            "'resources': {'limits': {'memory': 'much'}}}]}}",
            "limits\\['memory'\\] is 'much'; it must be a quantity",
        ),
        ('word: str = ""', "word: str = 'say \"hi\"'", "no quotation mark"),
    ],
)
def test_a_constant_that_cannot_work_is_found(mine, cli, tmp_path, before, after, message):
    text = mine.read_text()
    assert before in text
    mine.write_text(text.replace(before, after))
    result = cli("compile", f"{mine}:training", "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert re.search(message, result.output)
    assert "pytorch-job: " in result.output


def test_where_one_pipeline_cannot_work_none_of_its_file_is_written(mine, cli, tmp_path):
    mine.write_text(mine.read_text().replace("nodes: int = 2", "nodes: int = 0"))
    assert cli("compile", mine, "--output", tmp_path / "out").exit_code == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("float = 0.9", "float = -1e308", "task metric-gate: Neither minimum nor maximum"),
        ('"mine", requests', "f\"{60 * 'a'}\", requests", "task kserve-deploy: .*at most 63"),
        ('"mine", requests', '"..", requests', "task kserve-deploy: service_name is"),
        ("requests: list = []", "requests: list = [1]", r"task kserve-predict: .*requests\[0\]"),
    ],
)
def test_a_constant_of_the_later_steps_is_checked_too(mine, cli, before, after, message):
    text = mine.read_text()
    assert before in text
    mine.write_text(text.replace(before, after))
    result = cli("compile", f"{mine}:serving", "--output", mine.parent / "out")
    assert result.exit_code == 1
    assert re.search(message, result.output)


@pytest.mark.parametrize(
    ("items", "given", "message"),
    [
        ("[2, 0]", "num_nodes=item", "num_nodes is 0"),
        ("[{'n': 2}, {'n': -7}]", "num_nodes=item.n", "num_nodes is -7"),
        ("['cpu', 'some']", "nproc_per_node=item", "nproc_per_node is 'some'"),
        ("['a', '$']", "hyperparameters={'a': item}, name=item", "name is '$'"),
        ("many", "num_nodes=item", "num_nodes is -1"),
    ],
)
def test_every_round_of_a_loop_over_constants_is_checked(tmp_path, cli, items, given, message):
    path = tmp_path / "looping.py"
    text = f"""
from kfp import dsl
from kfp_pytorch.components import pytorch_job

@dsl.pipeline
def looping(many: list[int] = [1, -1, -1]):
    with dsl.ParallelFor({items}) as item:
        pytorch_job(image="i", {given})
"""
    path.write_text(text)
    result = cli("compile", path, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert result.output.count(f"task pytorch-job: {message}") == 1, result.output
    path.write_text(text.replace("-7", "7").replace("0]", "3]").replace("-1", "1"))
    good = path.read_text().replace("'some'", "'auto'").replace("'$'", "'b'")
    path.write_text(good)
    assert cli("compile", path, "--output", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('output_uri="file:///logs"', "output_uri is 'file:///logs'; it must begin with pvc://"),
        ('key="../other"', r"key has the path '\.\./other'"),
        ('image="no good"', "image is 'no good'; write it as REGISTRY/NAME:TAG"),
        ('output_secret="A b"', "output_secret is 'A b'"),
        ('labels={"a": "b c"}', r"labels\['a'\] is 'b c'"),
    ],
)
def test_a_constant_of_the_first_step_is_checked_too(tmp_path, cli, given, message):
    path = tmp_path / "viewing.py"
    path.write_text(f"""
from kfp import dsl
from kfp_pytorch.components import tensorboard

@dsl.pipeline
def viewing():
    tensorboard({given})
""")
    result = cli("compile", path, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert re.search(f"task tensorboard: {message}", result.output), result.output


@pytest.mark.parametrize(
    ("imported", "task", "message"),
    [
        ("'s3://b/m'", 'kserve_predict(model=m, url="http://a")', "url is 'http://a'"),
        ("'/tmp/m'", 'kserve_deploy(model=m, service_name="s")', "KServe cannot read .* '/tmp/m'"),
        ("place", 'kserve_deploy(model=m, service_name="s")', "KServe cannot read .* 'm'"),
        (
            "'s3://b/m', metadata={'format': 'pytorch'}",
            'kserve_deploy(model=m, service_name="s")',
            "makes KServe take TorchServe",
        ),
        (
            "'s3://b/m'",
            "kserve_deploy(model=m, service_name=f's-{dsl.PIPELINE_JOB_ID_PLACEHOLDER}')",
            "service_name holds 's-.*a placeholder that nothing filled in",
        ),
        (
            "'s3://b/m'",
            "pytorch_job(image='i', key=f'k/{dsl.PIPELINE_JOB_ID_PLACEHOLDER}')",
            "key holds 'k/.*a placeholder that nothing filled in",
        ),
        ("'s3://b/m'", "register_model(model=m, model_name='d')", "there is nowhere to register"),
        ("'/tmp/m'", "register_model(model=m, model_name='d', registry_url=URL)", "a path on one"),
        (
            "'s3://b/m'",
            "register_model(model=m, model_name='a/b', mlflow_tracking_uri=URL)",
            "model_name is 'a/b'; MLflow takes no name with",
        ),
        ("'s3://b/m'", 'metric_gate(metrics=n, metric=" ", minimum=0.5)', "metric is not set"),
    ],
)
def test_all_that_a_later_step_would_refuse_is_refused_before(
    tmp_path, cli, imported, task, message
):
    result = compile_serving(tmp_path, cli, imported, task)
    assert result.exit_code == 1
    assert re.search(message, result.output), result.output


@pytest.mark.parametrize("metadata", ["{'storage_uri': place}", "{'format': 'onnx'}"])
def test_what_an_import_learns_in_the_run_is_no_mistake(tmp_path, cli, metadata):
    task = "kserve_deploy(model=m, service_name='s', model_format='onnx')"
    result = compile_serving(tmp_path, cli, f"'s3://b/m', metadata={metadata}", task)
    expected = "KServe cannot read .* 'm'" if "place" in metadata else "a.yaml"
    assert re.search(expected, result.output), result.output


def test_a_placeholder_that_kfp_will_fill_in_is_no_mistake(tmp_path, cli):
    task = "kserve_deploy(model=m, service_name=dsl.PIPELINE_JOB_NAME_PLACEHOLDER)"
    result = compile_serving(tmp_path, cli, "'s3://b/m'", task)
    assert result.exit_code == 0, result.output


def test_a_model_imported_from_where_kfp_cannot_read_is_warned_of_with_the_way_out(tmp_path, cli):
    task = "kserve_deploy(model=m, service_name='s')"
    result = compile_serving(tmp_path, cli, "'pvc://claim/m'", task)
    assert result.exit_code == 0, result.output
    assert "task kserve-deploy: its model is imported from 'pvc://claim/m'" in result.stderr
    way_out = "'s3://b/m', metadata={'storage_uri': 'pvc://claim/m'}"
    assert not compile_serving(tmp_path, cli, way_out, task).stderr


def test_what_is_set_on_a_task_is_checked_with_the_inputs(tmp_path, cli):
    for setting, message in {
        ".set_env_variable('RANK', '1')": "env may not set RANK",
        ".set_memory_limit(place)": "limits.* is 'm'",
    }.items():
        result = compile_serving(tmp_path, cli, "'s3://b/m'", f"pytorch_job(image='i'){setting}")
        assert re.search(f"task pytorch-job: .*{message}", result.output), result.output


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("add_toleration(t, key='a', operator='Bad')", "operator is 'Bad'"),
        ("add_node_selector(t, 'a', 'b c')", "node_selector\\['a'\\] is 'b c'"),
        ("mount_pvc(t, 'a', '/x'); kubernetes.mount_pvc(t, place, '/x')", "are mounted at '/x'"),
        ("use_secret_as_volume(t, 'A_B', '/x')", "name of a volume is 'A_B'"),
    ],
)
def test_what_kfp_kubernetes_sets_on_a_task_is_checked_with_the_inputs(
    tmp_path, cli, setting, message
):
    task = "from kfp import kubernetes; t = pytorch_job(image='i'); kubernetes."
    result = compile_serving(tmp_path, cli, "'s3://b/m'", task + setting)
    assert re.search(f"task pytorch-job: .*{message}", result.output), result.output
    mended = setting.replace("Bad", "Equal").replace("b c", "b").replace("A_B", "a")
    mended = mended.replace("place, '/x'", "place, '/y'")
    result = compile_serving(tmp_path, cli, "'s3://b/m'", task + mended)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "task",
    [
        "kserve_predict(model=m, url=URL, requests=[{'instance': 50_001 * 'é', 'prediction': 1}])",
        "pytorch_job(image='i', annotations={'a': 100_001 * 'x'})",
        "pytorch_job(image='i', pod_template_patch={'metadata': {'name': 100_001 * 'x'}})",
    ],
)
def test_inputs_too_large_to_start_a_step_with_are_refused_whichever_they_are(tmp_path, cli, task):
    result = compile_serving(tmp_path, cli, "'s3://b/m'", task)
    assert result.exit_code == 1
    assert re.search("inputs are 100,.* bytes together, .* the limit is 100,000", result.output)
    smaller = task.replace("100_001", "99_000").replace("50_001", "49_000")
    assert compile_serving(tmp_path, cli, "'s3://b/m'", smaller).exit_code == 0


def compile_serving(tmp_path, cli, imported, task):
    path = tmp_path / "a.py"
    path.write_text(f"""
from kfp import dsl
from kfp_pytorch.components import (
    kserve_deploy, kserve_predict, metric_gate, pytorch_job, register_model
)

URL = "http://host/v1/models/m:predict"

@dsl.pipeline
def a(place: str = "m"):
    m = dsl.importer(artifact_class=dsl.Model, artifact_uri={imported}).output
    n = dsl.importer("s3://b/n", dsl.Metrics).output
    {task}
""")
    return cli("compile", path, "--output", tmp_path / "out")


def test_a_component_of_the_same_name_that_is_not_ours_is_left_alone(tmp_path, cli):
    path = tmp_path / "theirs.py"
    path.write_text("""
from kfp import dsl

@dsl.component(base_image="python")
def pytorch_job(num_nodes: int, colour: str):
    print(num_nodes, colour)

@dsl.pipeline
def theirs():
    pytorch_job(num_nodes=0, colour="red")
""")
    assert cli("compile", path, "--output", tmp_path).exit_code == 0


def test_what_only_the_run_knows_is_no_mistake_and_the_rest_is_checked(mine, cli, tmp_path):
    assert cli("compile", f"{mine}:choosing", "--output", tmp_path).exit_code == 0
    mine.write_text(mine.read_text().replace("num_nodes=2", "num_nodes=0"))
    result = cli("compile", f"{mine}:choosing", "--output", tmp_path)
    assert "num_nodes is 0" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "There is no pipeline 'nothing'. Those that come with kfp-pytorch: "),
        (["absent.py"], "There is no file absent.py"),
        (["absent.yaml"], "Cannot read absent.yaml"),
        ([], "Name a pipeline"),
    ],
)
def test_a_pipeline_that_is_not_there_is_answered_with_those_that_are(cli, arguments, message):
    result = cli("compile", *arguments)
    assert result.exit_code != 0
    assert message in result.output


def test_a_function_that_is_not_there_is_answered_with_those_that_are(mine, cli):
    result = cli("compile", f"{mine}:subtracting")
    assert (
        "has no pipeline 'subtracting'. It has: adding, choosing, serving, training"
        in result.output
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "no function under @dsl.pipeline"),
        ("import nonsuch\n", "cannot be imported: ModuleNotFoundError: No module named 'nonsuch'"),
        ("import os\nos.environ['NONSUCH']\n", "line 2, in <module>\n    os.environ['NONSUCH']"),
        ("def (:\n", "cannot be imported: SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(0)\n", "cannot be imported: SystemExit: 0"),
    ],
)
def test_a_file_that_gives_no_pipeline_says_why(tmp_path, cli, text, message):
    path = tmp_path / "other.py"
    path.write_text(text)
    result = cli("compile", path)
    assert result.exit_code == 1
    assert message in result.output


def test_several_pipelines_do_not_go_into_one_file(mine, cli, tmp_path):
    result = cli("compile", mine, "--output", tmp_path / "one.yaml")
    assert result.exit_code == 2
    assert "name a folder" in result.output


def test_the_default_of_a_nested_pipeline_is_checked_where_it_is_not_given(tmp_path, cli):
    path = tmp_path / "nesting.py"
    text = """
from kfp import dsl
from kfp_pytorch.components import pytorch_job

@dsl.pipeline
def inner(image: str, nodes: int = -3):
    pytorch_job(image=image, num_nodes=nodes)

@dsl.pipeline
def outer():
    inner(image="i")
"""
    path.write_text(text)
    result = cli("compile", f"{path}:outer", "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert "task pytorch-job: num_nodes is -3" in result.output
    path.write_text(text.replace('image="i"', 'image="i", nodes=2'))
    assert cli("compile", f"{path}:outer", "--output", tmp_path / "out").exit_code == 0


def test_what_kfp_cannot_compile_is_told_in_a_line(tmp_path, cli):
    path = tmp_path / "gating.py"
    path.write_text("""
from kfp import dsl

@dsl.component(base_image="python")
def compare(minimum: float):
    pass

@dsl.pipeline
def gating():
    compare(minimum=float("nan"))
""")
    result = cli("compile", path, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert result.output.startswith("Error: KFP cannot compile gating: ")
    assert "NaN" in result.output
