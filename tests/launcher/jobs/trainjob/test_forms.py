"""The form of the cluster's Trainer is read from its schema, of each version."""

from __future__ import annotations

import pytest
from harness.objects import trainer

from kfp_pytorch.launcher.constants import TRAINJOB
from kfp_pytorch.launcher.jobs.trainjob.forms import CURRENT, FORMS, read_form
from kfp_pytorch.local.apiserver.registry import Registry

with_definitions = pytest.mark.skipif(
    not trainer.FILE.exists(), reason="no CustomResourceDefinitions"
)


@with_definitions
@pytest.mark.parametrize("field", FORMS)
def test_the_schema_of_each_trainer_gives_its_form(field: str) -> None:
    assert read_form(trainer.schema(field)) == FORMS[field]


@with_definitions
def test_a_schema_without_any_of_them_gives_none() -> None:
    schema = trainer.schema()
    del schema["properties"]["spec"]["properties"]["runtimePatches"]
    assert read_form(schema) is None
    assert read_form({}) is None


def test_the_short_schema_of_a_local_cluster_is_of_the_current_form() -> None:
    assert read_form(Registry([]).of(TRAINJOB).schema or {}) == CURRENT
