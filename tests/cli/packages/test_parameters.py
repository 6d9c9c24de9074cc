"""Parameters as a person types them."""

import re

import click
import pytest

from kfp_pytorch.cli.packages import find as packages
from kfp_pytorch.cli.packages import parameters

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
        "  a: integer  The first number.\n  b: number = 0.5\n  flag: boolean = false"
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
