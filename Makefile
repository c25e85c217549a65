PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: setup demo docs quick test test-slow test-all check bench chaos clean

setup: $(VENV)/.stamp

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -e .
	touch $@

$(VENV)/.stamp: $(VENV)/.core
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[dev,flower]'
	touch $@

demo: $(VENV)/.core
	$(BIN)/proxskip demo

# The documentation as HTML pages in site/; warnings are errors
docs: $(VENV)/.core
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[docs]'
	$(BIN)/python docs/site/build.py --out site

# Which tier is for what: see CONTRIBUTING.md
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup

quick: setup
	HYPOTHESIS_PROFILE=dev $(PYTEST) -m "not (slow or long or ray or flower or browser or torch)"

test: setup
	HYPOTHESIS_PROFILE=ci $(PYTEST) -m "not slow"

test-slow: setup
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m "slow or fuzz"

test-all: test test-slow

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[bench]'
	$(BIN)/python benchmarks/run.py

chaos: setup
	$(BIN)/python tests/chaos.py

clean:
	rm -rf $(VENV) demo site build runs report .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
