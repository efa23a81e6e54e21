# `make test` and `make demo` need only Python 3.11+ and make: they create .venv and install into it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install test gpu-test hostile demo docs lint clean

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

test: install
	$(BIN)/python -m pytest -n 2 --dist loadgroup

# On a machine with a GPU, with a Python that has the dependencies; writes results/gpu-tests.json.
GPU_PYTHON ?= python3
gpu-test:
	$(GPU_PYTHON) benchmarks/gpu_tests.py

# Fuzzed calls and killed processes, for about half an hour; writes results/hostile.json.
hostile: install
	OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/run.py --fuzz 10000 --kills 300 --json results/hostile.json

demo: install
	$(BIN)/simplicia demo

# The documentation site, in build/site.
docs: install
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/site

lint: install
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv build dist *.egg-info
