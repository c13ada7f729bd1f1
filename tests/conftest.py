"""Options and fixtures of the whole suite, and what its worker processes must not share."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import tempfile
from typing import Any

import numpy as np
import pytest
import specsched_executor  # noqa: F401 -- sets up OpenMP, which has to precede torch
import structlog
import torch

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
"""Name of this process among those of `pytest -n`, which run test files side by side."""

if WORKER:
    # The other workers want the other cores: here and in the processes that tests start.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # An executor whose user chose leaves the allocator as it is, instead of starting once more.
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has its background jobs ignore Ctrl-C; programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# As in a process that serves: a line for each step at level `debug` would slow down every engine.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))

if not torch.cuda.is_available():
    # Triton reads it when a kernel is defined, so before any test imports one: device code then
    # runs in Triton's interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give a worker a folder of a short name: paths of sockets have at most 107 bytes."""
    if WORKER:
        config.option.basetemp = tempfile.mkdtemp(prefix="pytest-")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove that folder, which pytest does not know as one of its own."""
    if WORKER:
        shutil.rmtree(session.config.option.basetemp, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of real processes, which wait a lot: else all wait for them at last."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/integration/"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files: their fixtures are made once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # else files of many tests go first, whatever they take
    return LoadFileScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--bench-dir`, `--bench-model` and `--update-screenshot`."""
    parser.addoption(
        "--bench-dir",
        default=None,
        help="where benches write their JSON (default: docs/benchmarks/raw)",
    )
    parser.addoption(
        "--bench-model",
        default=None,
        help="GGUF file or folder that benches of a whole executor on a GPU serve (default: random"
        " weights in the shape of SmolLM2-135M)",
    )
    parser.addoption(
        "--update-screenshot",
        action="store_true",
        help="have tests/integration/test_page.py take docs/page.png anew, under a longer load",
    )


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test starts from the same global random state, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
