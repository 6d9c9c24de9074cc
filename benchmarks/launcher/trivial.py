"""Pipelines whose steps do nothing but take their time. KFP reads the annotations here."""

from kfp import dsl

WORKED = "worked for "


@dsl.component(base_image="python", install_kfp_package=False)
def work(seconds: float):
    """Works for so long, and says how long it was."""
    import time

    from kfp_pytorch.launcher.runtime.printing import write

    began = time.monotonic()
    time.sleep(seconds)
    write(f"worked for {time.monotonic() - began}\n")


def steps(number: int) -> None:
    task = work(seconds=0.1)
    for _ in range(number - 1):
        task = work(seconds=0.1).after(task)


@dsl.pipeline(name="few-steps")
def few():
    steps(2)


@dsl.pipeline(name="many-steps")
def many():
    steps(8)
