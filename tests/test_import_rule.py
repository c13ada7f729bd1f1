"""The import rule: which package may import which, and who may import torch.

protocol imports nothing of ours, all others may import protocol; only the executor imports kernels;
only the executor's in-process transport imports the scheduler.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository import PACKAGES, ROOT, sources

MAY_IMPORT = {
    "specsched_protocol": set(),
    "specsched_kernels": {"specsched_protocol"},
    "specsched_scheduler": {"specsched_protocol"},
    "specsched_client": {"specsched_protocol"},
    "specsched_executor": {"specsched_protocol", "specsched_kernels"},
}
EXCEPTIONS = {
    Path("executor/specsched_executor/transport/in_process.py"): {"specsched_scheduler"},
}
TORCH_FREE = ("specsched_protocol", "specsched_scheduler", "specsched_client")
DEVICE_LIBRARIES = {"torch", "triton", "transformers", "safetensors"}

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module("{package}")
names = [m.name for m in pkgutil.walk_packages(package.__path__, "{package}.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names), *(name for name in {forbidden} if name in sys.modules))
"""


def imported_packages(source: str) -> set[str]:
    """Top-level packages that `source` imports anywhere: in functions, behind TYPE_CHECKING, and by
    importlib.import_module or __import__ with a literal name."""
    return set(_imported(ast.parse(source)))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(
                func
            ).rpartition(".")[2] in {"import_module", "__import__"}:
                yield name.partition(".")[0]
            case _:
                pass


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_it_may(package):
    broken = []
    for path in sources(package):
        relative = path.relative_to(ROOT)
        allowed = MAY_IMPORT[package] | EXCEPTIONS.get(relative, set()) | {package}
        ours = imported_packages(path.read_text()) & PACKAGES.keys()
        broken += [f"{relative} imports {name}" for name in sorted(ours - allowed)]
    assert broken == []


@pytest.mark.parametrize("package", TORCH_FREE)
def test_no_device_library_in_the_source(package):
    found = {
        str(path.relative_to(ROOT)): libraries
        for path in sources(package)
        if (libraries := imported_packages(path.read_text()) & DEVICE_LIBRARIES)
    }
    assert found == {}


@pytest.mark.parametrize("package", TORCH_FREE)
def test_importing_every_module_loads_no_device_library(package):
    """Catches what the source does not show: a dependency that imports torch on its own."""
    forbidden = sorted(DEVICE_LIBRARIES | {"specsched_executor", "specsched_kernels"})
    script = IMPORT_ALL.format(package=package, forbidden=forbidden)
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    num_modules, *loaded = done.stdout.split()
    assert int(num_modules) > 0
    assert loaded == []


def test_a_front_end_in_a_process_of_its_own_loads_no_device_library():
    script = "import sys, specsched_executor.front_end.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120
    )
    assert DEVICE_LIBRARIES & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import specsched_kernels.allocate", {"specsched_kernels"}),
        ("from specsched_scheduler.decision import decide", {"specsched_scheduler"}),
        ("def f():\n    import torch", {"torch"}),
        ("import importlib\nimportlib.import_module('torch.cuda')", {"importlib", "torch"}),
        ("from . import torch", set()),
        ("from .torch import x", set()),
    ],
)
def test_the_check_sees_an_import(source, found):
    assert imported_packages(source) == found
