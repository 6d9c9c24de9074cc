"""What a step's modules lose: types, and nothing that a program does."""

import ast
from pathlib import Path

import pytest
import urllib3

import kfp_pytorch
from kfp_pytorch.components.stripping import without_types

ROOT = Path(kfp_pytorch.__file__).parent.parent


class Untyped(ast.NodeTransformer):
    """Takes the same out of a tree."""

    def visit_FunctionDef(self, node):
        if any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
            return None
        if node.returns and node.returns.lineno == node.returns.end_lineno:
            node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node):
        return self.visit_FunctionDef(node)

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_If(self, node):
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = [ast.Pass()]
        return self.generic_visit(node)


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(ROOT / "launcher", id="launcher", marks=pytest.mark.slow),
        pytest.param(Path(urllib3.__file__).parent, id="urllib3"),
    ],
)
def test_each_module_does_the_same_without_types_on_the_same_lines(folder):
    shorter = 0
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text()
        stripped = without_types(source)
        assert stripped.count("\n") == source.count("\n"), path
        assert ast.dump(ast.parse(stripped)) == ast.dump(Untyped().visit(ast.parse(source))), path
        shorter += len(source) - len(stripped)
    assert shorter > 10_000


def test_every_form_of_an_annotation_is_found():
    source = """\
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from a import (
        b,
    )

    @overload
    def inside(a: int) -> str: ...
else:
    b = 1
class A:
    field: int = 1

    @overload
    def f(self, a: int) -> str: ...
    @overload
    def f(self, a: str) -> int: ...
    async def f(
        self, a: "é" = "ü", /, *args: dict[str, int], b: (
            int | str
        ) = 2, **rest: Any
    ) -> (list[str]):
        def g(x: Callable[..., int] = lambda y: y) -> None: return x
        local: int = 3
        return g
"""
    stripped = without_types(source)
    assert ast.dump(ast.parse(stripped)) == ast.dump(Untyped().visit(ast.parse(source)))
    assert stripped.count("\n") == source.count("\n")
    for gone in ("import (", "overload", "dict[", "list[str]", "Any", "Callable"):
        assert gone not in stripped
    for kept in ("field: int = 1", "local: int = 3", 'a = "ü"', "def g(x = lambda y: y): return x"):
        assert kept in stripped
