"""Conditions of `dsl.If` and `dsl.Elif` in a local run, evaluated as on a cluster.

KFP compiles them to CEL. kfp.local finds only outputs with the name `Output`, has no `double()`,
fails over a quotation mark in a value, and takes every failure for False, so that steps are skipped
without a message:
https://github.com/kubeflow/pipelines/blob/master/sdk/python/kfp/local/orchestrator/enhanced_dag_orchestrator.py
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_REFERENCE = re.compile(r"inputs\.parameter_values\['([^']+)'\]")
# A text, which is not changed, or an operator that Python writes as a word.
_TOKEN = re.compile(r"'(?:\\.|[^'\\])*'|&&|\|\||!(?!=)")
# What KFP compiles to, as Python: texts, names and numbers, but no attribute and no other quotes.
_SAFE = re.compile(r"(?:(?<![\w'])'(?:\\.|[^'\\])*'|[\w\s()<>=!+-]|\.(?=\d))*")
_WORDS = {"&&": " and ", "||": " or ", "!": " not "}
_NAMES = {"__builtins__": {}, "int": int, "double": float, "true": True, "false": False}


def evaluator(resolve: Callable[[str, Any], Any]) -> Callable[[str, Any], bool]:
    """Makes a replacement of kfp.local's `evaluate_condition`; `resolve` finds other values."""

    def evaluate(condition: str, store: Any) -> bool:
        def value_of(channel: str) -> Any:
            made = _output(channel, store)
            return resolve(channel, store) if made is None else made

        return holds(condition, value_of)

    return evaluate


def holds(condition: str, value_of: Callable[[str], Any]) -> bool:
    """Whether a condition holds; it does not if a value is None. Raises what comparing raises."""
    values: dict[str, Any] = {}

    def variable(match: re.Match[str]) -> str:
        # A variable, so that no value is read as a part of the condition.
        name = f"value_{len(values)}"
        values[name] = value_of(match[1])
        return name

    text = _REFERENCE.sub(variable, condition)
    if any(value is None for value in values.values()):
        return False
    text = _TOKEN.sub(lambda match: _WORDS.get(match[0], match[0]), text).strip()
    if not _SAFE.fullmatch(text):
        raise ValueError(f"The condition {condition!r} is none that KFP compiles.")
    return not text or bool(eval(text, {**_NAMES, **values}))  # noqa: S307


def _output(channel: str, store: Any) -> Any:
    """The output of a task in this group of tasks or in one around it; None if there is none."""
    while store is not None:
        for task, outputs in store._task_output_data.items():
            for name, value in outputs.items():
                if channel == f"pipelinechannel--{task}-{name}":
                    return value
        store = store._parent
    return None
