"""Modules and functions stay small enough to be read in one go."""

from __future__ import annotations

import ast

import pytest

from tests.repository import PACKAGES, ROOT, sources

MAX_MODULE_LINES = 300
LONG_FUNCTION_LINES = 30
MAX_LONG_FUNCTION_SHARE = 0.1


def function_lengths(source: str) -> list[int]:
    """Lines of each function below its signature and docstring."""
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = []
    for function in functions:
        body = function.body[1:] if ast.get_docstring(function) else function.body
        lengths.append(body[-1].end_lineno - body[0].lineno + 1 if body else 0)
    return lengths


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_hold_one_concept(package):
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources(package)}
    assert {name: n for name, n in lengths.items() if n > MAX_MODULE_LINES} == {}


def test_nine_functions_in_ten_are_short():
    paths = [path for package in PACKAGES for path in sources(package)]
    lengths = [n for path in paths for n in function_lengths(path.read_text())]
    num_long = sum(n > LONG_FUNCTION_LINES for n in lengths)
    assert num_long <= MAX_LONG_FUNCTION_SHARE * len(lengths)


def test_lengths_leave_out_signature_and_docstring():
    source = 'def f(\n    a,\n):\n    """Text."""\n    x = a\n    return x\n'
    assert function_lengths(source) == [2]
