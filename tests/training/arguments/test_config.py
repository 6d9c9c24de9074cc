from __future__ import annotations

import pytest

from kfp_pytorch.training.arguments import config
from kfp_pytorch.training.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--seed=18446744073709551615", "--seed is 18446744073709551615; it must be at least 0"),
        ("--lr=1e308", "--lr is 1e+308; it must be above 0 and at most"),
        ("--lr=nan", "--lr is nan"),
        ("--weight-decay=1e300", "--weight-decay is 1e+300"),
        ("--collective-timeout=inf", "--collective-timeout is inf; it must be at least 1"),
        ("--skip-bad-steps=99999999999", "at most 1000000"),
        ("--workers=100000", "at most 1024"),
        ("--model=lm-tiny --accumulate=0", "--accumulate is 0; it must be at least 1"),
        ("--model=lm-tiny --seq-len=1", "--seq-len is 1; it must be at least 2"),
        ("--rank-timeout=0.01", "--rank-timeout is 0.01; it must be at least 1"),
    ],
)
def test_a_number_beyond_what_a_run_can_count_is_refused_with_its_limits(arguments, words):
    with pytest.raises(ConfigError) as refused:
        config.parse(arguments.split())
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--model=lm-huge", "--model is 'lm-huge'; it can be lm-tiny, lm-10m"),
        ("--model=lm-tiny --parallelism=fsdp3", "'fsdp3' is none of pp, ddp, fsdp2, tp"),
        ("--model=lm-tiny --parallelism=tp=0", "the size of tp is '0'"),
        ("--model=lm-tiny --accumulate=3", "--batch-size 16 of a language model cannot be split"),
        ("--parallelism=ddp,tp=2", "image models take ddp alone"),
    ],
)
def test_what_no_model_can_be_trained_with_is_refused_before_torch_is_there(arguments, words):
    with pytest.raises(ConfigError) as refused:
        config.parse(arguments.split())
    assert words in str(refused.value)


def test_blanks_around_a_place_are_no_part_of_it():
    found = config.parse(["--output", " /data/job ", "--resume-from= s3://a/b", "--data-dir=/x "])
    assert (found.output, found.resume_from, found.data_dir) == ("/data/job", "s3://a/b", "/x")


def test_text_files_that_were_left_empty_are_none():
    assert config.parse(["--model=lm-tiny", "--text-files", "", " "]).text_files == ()


def test_a_folder_whose_name_is_not_utf8_is_refused_before_tensorboard_cannot_write_there():
    with pytest.raises(ConfigError, match=r"--output is '/data/caf\\udce9', which is no UTF-8"):
        config.parse(["--output=/data/caf\udce9"])
    assert config.parse(["--output=/data/日本"]).output == "/data/日本"


@pytest.mark.parametrize(
    ("output", "source"),
    [
        ("/data/job", "/data/other/../job/"),
        ("/data/job", "file:///data/job"),
        ("s3://b/job", "s3://b/job/"),
    ],
)
def test_resume_never_from_the_folder_that_it_would_empty_is_refused(output, source):
    places = [f"--output={output}", f"--resume-from={source}"]
    with pytest.raises(ConfigError, match=r"deletes the checkpoints in .* give another --output"):
        config.parse([*places, "--resume=never"])
    # What goes on deletes nothing.
    assert config.parse(places).resume == "auto"
    assert config.parse([places[0], f"--resume-from={source}-1", "--resume=never"])
