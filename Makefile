# Needs Python 3.11 or later with pip, and nothing else: everything is installed into .venv.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
BROWSER := .venv-browser
INTEROP := .venv-interop
# A build of PyTorch for the CPU: name the one of your platform, such as TORCH='torch --index-url URL'.
TORCH ?= torch==2.13.0
RUN_STAMP := $(VENV)/.certimap-installed
DEV_STAMP := $(VENV)/.certimap-dev-installed
DOCS := .venv-docs

.PHONY: demo docs dist wheels test test-all test-interop test-browser lint types pytest pytest-quick pytest-nojit format clean

demo: $(RUN_STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

# What finds most faults: two cases of every test, without the slow ones.
test: lint types pytest-quick

# Everything that must pass.
test-all: lint types pytest-nojit pytest

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=src $(BIN)/lint-imports
	cd lab && PYTHONPATH=../src ../$(BIN)/lint-imports
	$(BIN)/python tests/house.py

types: $(DEV_STAMP)
	$(BIN)/pyright src lab

# The suite proper. Files stay together on a worker, so that a kernel is compiled by few of them.
pytest: $(DEV_STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

pytest-quick: $(DEV_STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --quick

# The small part once more, with the kernels run as plain Python.
pytest-nojit: $(DEV_STAMP)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m nojit -q

# The report page and the explorer in headless Chromium (Debian's package, or CHROMIUM=/path/to/it), in an environment of its own.
test-browser: $(BROWSER)/.installed
	$(BROWSER)/bin/python -m pytest tests/browser

$(BROWSER)/.installed: pyproject.toml
	$(PYTHON) -m venv $(BROWSER)
	$(BROWSER)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[explore,plot]' hypothesis pytest playwright axe-playwright-python
	@touch $@

# What needs pgmpy, pyagrum, spflow, cirkit and the like: an environment of its own, of some 2 GB.
test-interop: $(INTEROP)/.installed
	$(INTEROP)/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/interop tests/cli/test_readme.py

$(INTEROP)/.installed: pyproject.toml lab/pyproject.toml tests/interop/requirements.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -e lab -r tests/interop/requirements.txt
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps deeprob-kit==1.1.0
	@touch $@

# The site, in build/site; any warning is an error. The tools of site and release live in an environment of their own.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

# Wheel and sdist, in dist, tried out in an empty environment of each of PYTHONS.
PYTHONS ?= $(BIN)/python
dist: $(DOCS)/.installed
	rm -rf dist
	$(DOCS)/bin/python -m build
	$(DOCS)/bin/twine check --strict dist/*
	.ci/check-dist $(PYTHONS)

# Wheels that hold compiled kernels, in dist: one for each of PYTHONS, for this kind of machine.
wheels:
	.ci/build-wheels $(PYTHONS)

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "certimap needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Every target shares one environment; the stamps make repeated calls quick.
$(DEV_STAMP): pyproject.toml lab/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -e lab
	@touch $(DEV_STAMP) $(RUN_STAMP)

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DOCS)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check '.[docs,release]'
	@touch $@

clean:
	rm -rf $(VENV) $(DOCS) $(INTEROP) $(BROWSER) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
