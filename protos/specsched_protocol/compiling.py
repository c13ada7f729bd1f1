"""numba's njit with a cache on disk that is never out of date."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache as remembered
from functools import wraps
from pathlib import Path
from typing import Any

import numba
from numba.core import config as _config
from numba.core.compiler_lock import global_compiler_lock

__all__ = ["njit"]

config: Any = _config
"""numba's settings, whose attributes are made at run time."""

_OURS = "specsched_"
_MAX_WAIT_S = 120.0
"""For another process that compiles; one that was stopped meanwhile holds up nobody for good."""
_held_here: set[Path] = set()
"""Locks of this process; changed under numba's global lock alone."""
_MAX_KEPT = 4
"""Folders that are kept of a module: its own, that of a version to roll back to, two in work."""


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile as `numba.njit` does; what `cache` keeps on disk is found by all sources it is from.

    numba notices a change of the file that a function is in, not of the files that its callees,
    types and constants are in: after an upgrade, code for the old layout would go on being run. So
    the cache lies in a folder named for the content of the function's module and of all modules of
    this project that it imports: below NUMBA_CACHE_DIR where that is set, else beside the sources,
    or in the user's cache folder where those are read-only. Where nothing can be written, nothing
    is kept. Of each module the folders that were used last are kept.

    Processes that start together compile each function once: the others wait and load it. numba by
    itself would have all of them compile, and two that save different signatures at the same time
    could take each other's code for their own.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        configured = config.CACHE_DIR
        folder = _folder(Path(function.__code__.co_filename), configured) if cache else None
        if folder is None:
            return numba.njit(**options)(function)
        config.CACHE_DIR = str(folder)
        try:
            dispatcher = numba.njit(cache=True, **options)(function)
        finally:
            config.CACHE_DIR = configured
        lock = folder / f"{function.__qualname__}.lock"
        dispatcher.compile = _one_process_at_a_time(dispatcher.compile, lock)
        return dispatcher

    return decorate


def _one_process_at_a_time(compile_: Callable[..., Any], lock: Path) -> Callable[..., Any]:
    @wraps(compile_)
    def locked(signature: Any) -> Any:
        # numba's own lock comes first, as it does where a function is compiled for its caller.
        with global_compiler_lock, _held(lock):
            return compile_(signature)

    return locked


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Hold `lock`, or go on without after a long wait, or where the folder is gone."""
    file = None
    if lock not in _held_here:
        with suppress(OSError):
            file = lock.open("wb")
    if file is None:
        yield
        return
    with file:
        give_up = time.monotonic() + _MAX_WAIT_S
        while not _locks(file.fileno()) and time.monotonic() < give_up:
            time.sleep(0.02)
        _held_here.add(lock)
        try:
            yield
        finally:
            _held_here.discard(lock)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@remembered
def _folder(source: Path, configured: str) -> Path | None:
    digest = hashlib.sha256()
    for path in sorted(_sources(source)):
        digest.update(path.read_bytes())
    module = f"compiled-{source.parent.name}-{source.stem}-"
    name = module + digest.hexdigest()[:16]
    parent = next((each for each in _parents(source, configured) if _writable(each)), None)
    if parent is None:
        return None
    _use(parent / name)
    _remove_oldest(parent, module)
    return parent / name


def _use(folder: Path) -> None:
    """Mark `folder` as used now."""
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        os.utime(folder)


def _remove_oldest(parent: Path, module: str) -> None:
    """Remove what was used longest ago.

    Another process may use it: numba compiles what it does not find, and makes a folder anew that
    it wants to write into.
    """
    with suppress(OSError):
        found = [each for each in parent.iterdir() if each.name.startswith(module)]
        found.sort(key=lambda folder: folder.stat().st_mtime_ns, reverse=True)
        for folder in found[_MAX_KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)


def _parents(source: Path, configured: str) -> Iterator[Path]:
    if configured:
        yield Path(configured)
        return
    yield source.parent / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "specsched"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _sources(source: Path) -> set[Path]:
    """`source` and every file of this project that it imports, itself or through others."""
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(_imports(path))
    return found


@remembered
def _imports(source: Path) -> tuple[Path, ...]:
    nodes = ast.walk(ast.parse(source.read_bytes()))
    places = {place for node in nodes for place in _modules(node, source)}
    return tuple(file for place in places for file in _files_of(place) if file.is_file())


def _modules(node: ast.AST, source: Path) -> Iterator[Path]:
    """Where what `node` imports would be, if it is ours: of `from a import b`, both a and a.b."""
    if isinstance(node, ast.Import):
        yield from (place for each in node.names if (place := _place(each.name)))
    elif isinstance(node, ast.ImportFrom):
        above = source.parents[node.level - 1] if node.level else None
        name = node.module or ""
        base = above.joinpath(*name.split(".")) if above else _place(name)
        if base is not None:
            yield from (base, *(base / each.name for each in node.names))


def _place(name: str) -> Path | None:
    top, *rest = name.split(".")
    root = _root(top) if top.startswith(_OURS) else None
    return root.joinpath(*rest) if root else None


def _files_of(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.py"), path / "__init__.py"


@remembered
def _root(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
