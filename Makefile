# `make test` and `make demo` need only Python 3.11+ and make: they create .venv and install into it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install test gpu-test hostile demo docs notebooks wheel lint clean

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

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

# Execute the notebooks and store their outputs.
notebooks: install
	$(BIN)/python tests/test_notebooks.py

# Build the wheel and run it where the repository is not; its dependencies are those of .venv.
wheel: install
	rm -rf build/lib build/wheel
	$(BIN)/python -m build --wheel --outdir build/wheel
	$(BIN)/python -m venv --without-pip build/wheel/env
	$(BIN)/python -m pip --python build/wheel/env/bin/python install --quiet --no-deps build/wheel/*.whl
	$(BIN)/python -c "import site; print(*site.getsitepackages(), sep='\n')" \
	  > "$$(build/wheel/env/bin/python -c 'import site; print(*site.getsitepackages())')/dependencies.pth"
	$(BIN)/python -m pip --python build/wheel/env/bin/python check
	cd build/wheel && env/bin/python -c "import simplicia, sys; assert simplicia.__file__.startswith(sys.prefix)"
	cd build/wheel && env/bin/simplicia --version && env/bin/simplicia demo --epochs 1 --seeds 1

lint: install
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv build dist *.egg-info
