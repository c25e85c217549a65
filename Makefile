PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: setup demo docs quick test test-slow test-bare test-torch test-trainers test-stats test-browser test-shells test-all check bench compare chaos clean

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

# Which tier is for what: see CONTRIBUTING.md. LESS="and not release" leaves out what is run before a release alone
LESS ?=
PYTEST := -m pytest -n 2 --dist loadgroup
QUICK := not (slow or long or ray or flower or browser or torch or stats)

quick: setup
	HYPOTHESIS_PROFILE=dev $(BIN)/python $(PYTEST) -m "$(QUICK)"

test: setup
	HYPOTHESIS_PROFILE=ci $(BIN)/python $(PYTEST) -m "not slow"

test-slow: setup
	HYPOTHESIS_PROFILE=thorough $(BIN)/python $(PYTEST) -m "(slow or fuzz) and not (browser or shells) $(LESS)"

# Below, tests that need more than `make setup` installs, or less; each in an environment of its own

.venv-bare/.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-bare
	.venv-bare/bin/python -m pip install --disable-pip-version-check -q -e '.[test]'
	touch $@

# No optional package: every test is collected, what needs one is skipped and names it
test-bare: .venv-bare/.stamp
	HYPOTHESIS_PROFILE=dev .venv-bare/bin/python $(PYTEST) -m "not (slow or long)"

# TORCH=2.15.0 tests another version
TORCH ?= 2.13.0
.venv-torch/.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --disable-pip-version-check -q torch==$(TORCH)
	.venv-torch/bin/python -m pip install --disable-pip-version-check -q -e '.[test,torch,flower]'
	touch $@

test-torch: .venv-torch/.stamp
	HYPOTHESIS_PROFILE=ci .venv-torch/bin/python $(PYTEST) -m "torch $(LESS)"

.venv-trainers/.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-trainers
	.venv-trainers/bin/python -m pip install --disable-pip-version-check -q torch==$(TORCH)
	.venv-trainers/bin/python -m pip install --disable-pip-version-check -q -e '.[test,torch]' accelerate lightning
	touch $@

# The recipes of docs/torchrun.md for Accelerate and Lightning
test-trainers: .venv-trainers/.stamp
	HYPOTHESIS_PROFILE=ci .venv-trainers/bin/python $(PYTEST) tests/networks/test_torch_optimizer.py -k other_trainers

.venv-stats/.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-stats
	.venv-stats/bin/python -m pip install --disable-pip-version-check -q -e '.[test,stats]'
	# it has no wheel for some machines, and only its own comparisons need it
	-.venv-stats/bin/python -m pip install --disable-pip-version-check -q --only-binary :all: scikit-survival
	touch $@

# Fits that statsmodels, lifelines and scikit-survival know too
test-stats: .venv-stats/.stamp
	HYPOTHESIS_PROFILE=ci .venv-stats/bin/python $(PYTEST) -m stats

# Programs come from the system: installed with apt-get where that is allowed, else these tests are skipped and say so
test-browser: setup
	tests/support/install_programs.sh chromium fonts-dejavu-core
	HYPOTHESIS_PROFILE=ci $(BIN)/python $(PYTEST) -m browser

test-shells: setup
	tests/support/install_programs.sh zsh fish
	$(BIN)/python $(PYTEST) -m shells

test-all: test test-slow test-bare test-torch test-trainers test-stats test-browser test-shells

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[bench]'
	$(BIN)/python benchmarks/run.py

# Other libraries, each in an environment of its own in build/compare, which is kept; decent-bench needs python3.13
compare: setup
	$(BIN)/python benchmarks/compare.py

chaos: setup
	$(BIN)/python tests/campaigns/chaos.py

clean:
	rm -rf $(VENV) .venv-bare .venv-torch .venv-trainers .venv-stats demo site build runs report .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
