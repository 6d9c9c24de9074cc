"""Values of Secrets and ConfigMaps that end with a line break."""

from __future__ import annotations

import pytest

from kfp_pytorch.training.entry.environment import remove_final_line_breaks

PEM = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "name",
    [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "S3_ENDPOINT",
        "HF_TOKEN",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_TOKEN",
        "MASTER_ADDR",
        "https_proxy",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_the_line_break_at_the_end_of_a_key_or_an_address_is_removed(name: str, end: str) -> None:
    environ = {name: f"value{end}"}
    remove_final_line_breaks(environ)
    assert environ == {name: "value"}


@pytest.mark.parametrize(
    "kept",
    [
        {"SSH_PRIVATE_KEY": PEM},
        {"DATABASE_PASSWORD": "secret\n"},
        {"MOTTO": "first\nsecond\n"},
        {"AWS_SECRET_ACCESS_KEY": " with blanks "},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_any_other_value_is_kept(kept: dict[str, str]) -> None:
    environ = dict(kept)
    remove_final_line_breaks(environ)
    assert environ == kept
