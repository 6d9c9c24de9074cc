"""Reads the annotations of components in a file that has `from __future__ import annotations`.

There annotations are text, which KFP 2.17 takes for types: `'int'` is no int to it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def evaluated() -> Iterator[None]:
    """Has KFP see types, not their text, in what is decorated within this block."""
    from kfp.dsl import component_factory

    original = component_factory.extract_component_interface

    def extract_component_interface(func: Callable[..., Any], *given: Any, **named: Any) -> Any:
        # KFP itself names the parameter whose type is not known when it is decorated.
        with contextlib.suppress(NameError):
            func.__annotations__ = inspect.get_annotations(func, eval_str=True)
        return original(func, *given, **named)

    component_factory.extract_component_interface = extract_component_interface
    try:
        yield
    finally:
        component_factory.extract_component_interface = original
