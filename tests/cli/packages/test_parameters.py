"""Parameters as a person types them."""

import json
import re

import click
import pytest
from click.testing import CliRunner
from kfp import compiler

from kfp_pytorch import components
from kfp_pytorch.cli import main
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.client.packages import parameters
from kfp_pytorch.components.interfaces import INTERFACES

pytestmark = pytest.mark.usefixtures("quick_yaml")


@pytest.fixture
def adding(mine):
    return packages.find_one(f"{mine}:adding")


def test_each_value_gets_the_type_of_its_parameter(adding):
    given = ["a=3", "b=1e-5", 'words=["it\'s", "$HOME"]', "flag=TRUE", 'table={"k": "a=b"}']
    assert parameters.typed(adding, given) == {
        "a": 3,
        "b": 1e-5,
        "words": ["it's", "$HOME"],
        "flag": True,
        "table": {"k": "a=b"},
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("c=1", "adding has no parameter 'c'"),
        ("a", "write it as name=value"),
        ("a=x", "a is an integer, such as 3; 'x' is not"),
        ("a=1.5", "a is an integer"),
        ("b=", "b is a number"),
        ("b=nan", "b must be finite"),
        ("b=-inf", "b must be finite"),
        ("a=15.5", "a is an integer"),
        ("flag=maybe", "flag is a boolean, such as true"),
        ("words={}", "words is a list"),
        ("table=[", "table is a dict"),
        ('table={"a": NaN}', "table is a dict"),
        ('table={"a": [1e999]}', "table must be finite"),
        ('table={"a": {"b": null}}', "table holds null, which KFP hands to no step here"),
        ('words=["a", null]', "words holds null"),
        ('words=["{{x}}", "a {{$.inputs}}"]', "words holds '{{$.inputs}}', which KFP takes"),
        ('table={"{{$}}": 1}', "table holds '{{$}}', which KFP takes"),
    ],
)
def test_a_wrong_name_or_value_is_refused_with_what_is_right(adding, given, message):
    with pytest.raises(click.ClickException, match=re.escape(message)):
        parameters.typed(adding, [given])


def test_an_unknown_name_is_answered_with_all_names_types_and_defaults(adding):
    with pytest.raises(click.ClickException) as caught:
        parameters.typed(adding, ["c=1"])
    assert (
        "  a: integer (required)  The first number.\n  b: number = 0.5\n  flag: boolean = false"
        in caught.value.message
    )


def test_a_parameter_without_default_is_asked_for(adding):
    with pytest.raises(click.ClickException, match="adding needs -p a="):
        parameters.require(adding, {"b": 1.0})
    parameters.require(adding, {"a": 1})


def test_a_whole_number_may_be_written_with_a_point(adding):
    assert parameters.typed(adding, ["a=15.0"]) == {"a": 15}


def test_an_integers_default_is_shown_as_one():
    package = packages.find_one("train_and_serve")
    assert "  epochs: integer = 15  " in parameters.describe(package)


PASSED_ON = """
from typing import Optional
from kfp import dsl
from kfp_pytorch.components import pytorch_job

@dsl.pipeline(name="inner")
def inner(nodes: int = 2, rounds: int = 1):
    with dsl.If(rounds == 1):
        pytorch_job(image="i", num_nodes=nodes)

@dsl.pipeline(name="passed-on")
def passed_on(image: str, memory: str = "2Gi", nodes: int = 4, key: Optional[str] = None):
    \"\"\"Trains.

    Args:
        memory: As much as there is.
    \"\"\"
    pytorch_job(image=image, memory=memory, key=key)
    inner(nodes=nodes)
"""


def test_a_parameter_that_its_author_does_not_describe_is_described_as_the_input_it_goes_to(
    tmp_path, cli
):
    path = tmp_path / "passed_on.py"
    path.write_text(PASSED_ON)
    assert cli("compile", f"{path}:passed_on", "--output", tmp_path / "p.yaml").exit_code == 0
    listed = cli("params", f"{path}:passed_on").output
    assert cli("params", tmp_path / "p.yaml").output == listed
    image, key, memory, nodes = sorted(listed.splitlines()[1:])
    assert image.startswith("  image: string (required)  The training image")
    # KFP hands None on to no step.
    assert key.startswith("  key: string (required)  ")
    assert memory == '  memory: string = "2Gi"  As much as there is.'
    assert nodes == "  nodes: integer = 4  How many pods train, the first one included."


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda interface: interface.name)
def test_every_input_of_a_step_that_is_compiled_alone_is_listed_with_all_that_is_known(
    interface, tmp_path, cli
):
    path = tmp_path / "alone.yaml"
    compiler.Compiler().compile(getattr(components, interface.name), str(path))
    listed = cli("params", path).output.splitlines()[1:]
    names = set(interface.inputs) - {"task_config"}
    assert {line.split(":")[0].strip() for line in listed} == names
    for line in listed:
        assert re.fullmatch(r"  \w+: \w+( = \S.*?| \(required\))  \S.*\.", line), line


LONG = """
from kfp import dsl
from kfp_pytorch.components import pytorch_job

@dsl.pipeline(name="long")
def long(image: str, env: dict = {"a": "é"}, args: list = ["--word"] * 99, unused: int = 3):
    \"\"\"Trains.

    Args:
        args: The first line
            and the second: both.

            A paragraph.
    \"\"\"
    pytorch_job(image=image, env=env, args=args)
"""


def test_what_must_be_given_comes_first_and_a_long_default_is_cut_but_not_for_a_program(
    tmp_path, cli
):
    path = tmp_path / "long.py"
    path.write_text(LONG)
    image, args, env, unused = cli("params", path).output.splitlines()[1:]
    assert image.startswith("  image: string (required)  ")
    described = "The first line and the second: both. A paragraph."
    assert re.fullmatch(rf'  args: list = \["--word", .{{180,}}…  {described}', args)
    assert env.startswith('  env: dict = {"a": "é"}  ')
    assert unused == "  unused: integer = 3"
    told = json.loads(cli("params", path, "--json").output)
    assert told["pipeline"] == "long"
    by_name = {each["name"]: each for each in told["parameters"]}
    assert by_name["args"]["default"] == ["--word"] * 99
    assert (by_name["image"]["required"], by_name["image"]["default"]) == (True, None)
    narrow = parameters.describe(packages.find_one(str(path)), 40).splitlines()
    assert max(map(len, narrow)) <= 40
    # What the terminal's encoding lacks ends no command.
    shown = CliRunner(charset="latin-1").invoke(main, ["params", str(path)])
    assert f"?  {described}" in shown.stdout


OPTIONAL = """
from typing import Optional
from kfp import dsl
from kfp_pytorch.components import pytorch_job

@dsl.pipeline(name="optional")
def optional(key: Optional[str] = None, env: dict = {}, unused: Optional[int] = None):
    pytorch_job(image="i", key=key, env=env)
"""


def test_a_default_of_none_that_a_step_would_be_handed_is_told_with_the_way_out(tmp_path, cli):
    path = tmp_path / "optional.py"
    path.write_text(OPTIONAL)
    compiled = cli("compile", path, "--output", tmp_path / "optional.yaml")
    assert compiled.exit_code == 0
    assert compiled.stderr.count("Warning") == 1
    assert "the default of parameter key is None, which KFP cannot hand on" in compiled.stderr
    package = packages.find_one(str(path))
    with pytest.raises(click.ClickException, match=r"needs -p key=….*such as ''"):
        parameters.require(package, {})
    parameters.require(package, {"key": ""})
    path.write_text(OPTIONAL.replace("Optional[str] = None", "str = ''"))
    assert not cli("compile", path, "--output", tmp_path / "optional.yaml").stderr
    parameters.require(packages.find_one(str(path)), {})


@pytest.mark.parametrize(
    "group", ["dsl.If(rounds == 1)", "dsl.ParallelFor([1, 2])", "dsl.ExitHandler(pytorch_job())"]
)
def test_a_default_of_none_is_told_where_a_condition_a_loop_or_an_exit_handler_takes_it(
    group, tmp_path
):
    path = tmp_path / "optional.py"
    whole = 'pytorch_job(image="i", key=key, env=env)'
    inside = f"with {group.replace('job()', 'job(image=whose)')}:\n        {whole}"
    arguments = "rounds: int = 1, whose: str = 'i', "
    text = OPTIONAL.replace(whole, inside).replace("unused:", f"{arguments}unused:")
    path.write_text(text)
    assert parameters.passed_as_none(packages.find_one(str(path))) == ["key"]
