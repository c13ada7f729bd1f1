# The few verbs of the project; CI runs the same ones. Every target makes its environment first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BENCH ?= tests/bench
BENCH_DIR ?= docs/benchmarks/raw
GPU_CHECK ?= full
GPU_CHECK_DIR ?= .cache/gpu-check
GPU_PYTHON ?=
MODEL ?=
SOAK ?= --minutes 20 --record
PLAN ?= scripts/prove/short.toml
PROVE_DIR ?= .cache/prove
EXECUTOR ?=
TESTS ?= tests
JOBS ?= 2
RUN := .venv/bin/python -m
BUF := ../.venv/bin/buf
BASELINE := released/specsched_v1.binpb

export PYTHON
# Set-up compiles no module: the first process that imports one keeps what it compiled for the others.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test suite compiled lint types protos protos-check protos-release docs bench gpu-check soak prove format clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: ## make .venv with everything that the other targets need (they call it themselves)
	@scripts/setup

demo: setup ## serve a real model through the sidecar and watch it answer (options: DEMO="--help")
	@$(RUN) scripts.demo $(DEMO)

test: compiled lint types protos-check suite ## all gates and all tests (one file: TESTS=tests/..., JOBS=0: in one process)

suite: compiled
	$(RUN) pytest -n $(JOBS) --durations=15 --durations-min=5 $(TESTS)

compiled: setup
	$(RUN) scripts.compile_scheduler

lint: setup ## ruff: rules and format
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: setup ## mypy --strict on our packages
	$(RUN) mypy

protos-check: setup ## buf lint, stub drift, breaking changes since the last release
	cd protos && $(BUF) lint
	.venv/bin/python scripts/gen_protos.py --check
	cd protos && $(BUF) breaking --against $(BASELINE)

protos: setup ## regenerate the committed stubs from the .proto files
	.venv/bin/python scripts/gen_protos.py

protos-release: protos-check ## at a release: make the present protos the baseline of protos-check
	cd protos && $(BUF) build -o $(BASELINE)

docs: setup ## rewrite the tables of the documents that code says: options, commands, exit codes
	$(RUN) scripts.gen_docs

bench: setup ## run the measurements (one file: BENCH=tests/bench/..., output: BENCH_DIR=...)
	$(RUN) pytest -m bench --timeout=0 -s --bench-dir="$(BENCH_DIR)" $(BENCH)

# GPU_PYTHON: an interpreter that has specsched and torch already, in place of .venv; nothing is installed.
gpu-check: $(if $(GPU_PYTHON),,setup) ## on a machine with a GPU: all tests and measurements that need one (GPU_CHECK=quick, MODEL=..., GPU_PYTHON=...)
	@$(or $(GPU_PYTHON),.venv/bin/python) -m scripts.gpu_check $(GPU_CHECK) --folder "$(GPU_CHECK_DIR)" $(if $(MODEL),--model "$(MODEL)")

soak: setup ## swap, kill and stop schedulers under load for 20 minutes (options: SOAK="--swaps 20 --kills 20 --record")
	$(RUN) scripts.soak $(SOAK)

prove: setup ## measure the schedule against every fixed draft length here (PLAN=..., PROVE_DIR=..., EXECUTOR=options)
	$(RUN) scripts.prove $(PLAN) --output "$(PROVE_DIR)" -- $(EXECUTOR)

format: setup ## let ruff rewrite what it can
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

clean: ## remove the environment, caches and build output
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
