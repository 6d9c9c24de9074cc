"""The sources that are made shorter for a Workflow."""

import ast

from kfp_pytorch.components.minimize import minimize

SOURCE = """
import os as system

# A comment.
LIMIT = '@'
word, number = 'a   b: = word', 2


def shown(value, end='.'):
    text = ''
    for one in [value]:
        text += f'{one!s}'
        text = text.join([f'{word}', 'word'])
    return dict(text=text, end=end, path=system.path.join('word', word))


if number == 2 and word: result = shown(value=number)
else: result = None
"""


def test_a_minimized_source_does_the_same():
    made, original = {}, {}
    exec(SOURCE, original)
    short = minimize(SOURCE)
    exec(short, made)
    assert original["result"] in made.values()
    assert len(short) < 0.8 * len(SOURCE)


def test_names_of_a_call_and_in_upper_case_stay():
    short = minimize(SOURCE)
    keywords = {n.arg for n in ast.walk(ast.parse(short)) if isinstance(n, ast.keyword)}
    assert keywords == {"text", "end", "path", "value"}
    assert "\nLIMIT='@'" in short
    assert "# A comment." not in short
