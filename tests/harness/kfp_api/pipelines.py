"""Small pipelines for the API server of tests, which runs no step of them."""

from kfp import dsl, kubernetes

component = dsl.component(base_image="python", install_kfp_package=False)


@component
def say(word: str = "a") -> str:
    return word


@dsl.pipeline(name="greeting")
def greeting(name: str, times: int = 1, rate: float = 0.5, tags: list = []):  # noqa: B006
    """Greets.

    Args:
        name: Who is greeted.
    """
    first = say(word=name)
    say(word=first.output)


@dsl.pipeline(name="inner")
def inner(word: str = "x"):
    say(word=word)


@dsl.pipeline(name="looping")
def looping(items: list = ["a"]):  # noqa: B006
    first = say()
    with dsl.ParallelFor(items) as item:
        each = say(word=item).after(first)
        with dsl.If(each.output == "b"):
            say(word="c")
    inner(word=first.output)


@dsl.pipeline(name="retrying")
def retrying():
    task = say().set_retry(2)
    kubernetes.add_pod_label(task, "a", "b")
    say(word=task.output)
