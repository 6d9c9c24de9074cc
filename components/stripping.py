"""Takes out of a module what a running program does not need, and keeps the number of every line.

So a traceback of a step names the lines of the sources.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_Span = tuple[int, int]


def without_words(source: str) -> str:
    """Blanks the docstrings and comments of a module, and keeps the number of every line."""
    lines = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column].rstrip()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            first, last = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
            # An empty string stays: it may be all that the body has.
            lines[first:last] = [" " * docstring.col_offset + '""', *[""] * (last - first - 1)]
    return "\n".join(lines)


def without_types(source: str) -> str:
    """Takes out the annotations of functions, their overloads, and what type checkers import.

    Annotations of classes stay: dataclasses are made of them.
    """
    content = source.encode()
    offsets = [0]
    for line in content.split(b"\n"):
        offsets.append(offsets[-1] + len(line) + 1)
    # From the end on: what is cut moves nothing before it.
    for start, end, instead in sorted(_spans(content, offsets), reverse=True):
        lines = b"\n" * content[start:end].count(b"\n")
        content = content[:start] + instead + lines + content[end:]
    return content.decode()


def _spans(content: bytes, offsets: list[int]) -> Iterator[tuple[int, int, bytes]]:
    """What is taken out, from and to which byte, and what stands there instead."""
    whole: list[_Span] = []
    # From the outer ones to the inner ones.
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.stmt) and _within(_span(node, node, offsets), whole):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            whole.append(_span(node.body[0], node.body[-1], offsets))
            yield (*whole[-1], b"pass")
        elif isinstance(node, _FUNCTION) and _is_overload(node):
            start = offsets[node.decorator_list[0].lineno - 1]
            whole.append((start, _span(node, node, offsets)[1]))
            yield (*whole[-1], b"")
        elif isinstance(node, _FUNCTION):
            yield from ((*span, b"") for span in _annotations(node, content, offsets))


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return bool({"overload", "typing.overload"} & set(names))


def _within(span: _Span, others: list[_Span]) -> bool:
    return any(start <= span[0] < end for start, end in others)


def _annotations(
    node: ast.FunctionDef | ast.AsyncFunctionDef, content: bytes, offsets: list[int]
) -> Iterator[_Span]:
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    for argument in named:
        if argument and argument.annotation:
            name = offsets[argument.lineno - 1] + argument.col_offset
            start = name + len(argument.arg.encode())
            yield start, _end(content, start, argument.annotation, offsets)
    if node.returns:
        start, _ = _span(node.returns, node.returns, offsets)
        start = len(content[: content.rindex(b"->", 0, start)].rstrip(b" "))
        span = start, _end(content, start, node.returns, offsets)
        # No line may end before the colon.
        if b"\n" not in content[slice(*span)]:
            yield span


def _end(content: bytes, start: int, annotation: ast.expr, offsets: list[int]) -> int:
    """Where an annotation ends, with the parentheses around it that begin after `start`."""
    first, end = _span(annotation, annotation, offsets)
    for _ in range(content[start:first].count(b"(")):
        end = content.index(b")", end) + 1
    return end


def _span(first: ast.stmt | ast.expr, last: ast.stmt | ast.expr, offsets: list[int]) -> _Span:
    end = offsets[(last.end_lineno or last.lineno) - 1] + (last.end_col_offset or 0)
    return offsets[first.lineno - 1] + first.col_offset, end
