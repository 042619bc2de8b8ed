# Every target sets up its environment by itself when it is missing or older than pyproject.toml and the constraints.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --constraint constraints.txt --editable

# A stamp is written only after its step has succeeded, so an interrupted install is simply run again.
VENV_MADE := $(VENV)/.made
RUNTIME_INSTALLED := $(VENV)/.installed-runtime
DEV_INSTALLED := $(VENV)/.installed-dev
DOCS_INSTALLED := $(VENV)/.installed-docs
OLDEST_INSTALLED := .venv-oldest/.installed
NEWEST_INSTALLED := .venv-newest/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips must not write to one environment under `make -j`.
.NOTPARALLEL:
.PHONY: help demo test test-slow test-oldest test-newest lint bench bench-full docs clean distclean

help:
	@echo "make demo       train, extrapolate and plot for real on embedded data"
	@echo "make test       run the tests that are not marked slow, in some five minutes"
	@echo "make test-slow  run the slow tests: every host, exports, compilers, whole commands"
	@echo "make test-oldest  test models with the oldest supported torch, timm and transformers"
	@echo "make test-newest  the same with the newest that are released"
	@echo "make lint       ruff, ruff format, mypy"
	@echo "make bench      the speed ratios of the front page, in five minutes (bench-full: all of them)"
	@echo "make docs       build the documentation into site/ and check its links"
	@echo "make clean      remove caches and build output (make distclean: also $(VENV))"

demo: $(RUNTIME_INSTALLED)
	$(BIN)/seqpe-zoo demo

# The models of tests are tiny: one thread a process and a process a core beats more threads by far.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: $(DEV_INSTALLED)
	$(PYTEST) -m "not slow"

test-slow: $(DEV_INSTALLED)
	$(PYTEST) -m slow

# What depends on the versions of these libraries: encodings and models.
MODEL_TESTS := tests/portable tests/hosts tests/gpt2 tests/vit
TEST_TOOLS := 'pytest>=9.0,<10' 'pytest-timeout>=2.4' 'hypothesis>=6.150' 'peft>=0.21,<1'

test-oldest: $(OLDEST_INSTALLED)
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -m "not slow" $(MODEL_TESTS)

test-newest: $(NEWEST_INSTALLED)
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest -m "not slow" $(MODEL_TESTS)

lint: $(DEV_INSTALLED)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(RUNTIME_INSTALLED)
	$(BIN)/python -m benchmarks.run

bench-full: $(RUNTIME_INSTALLED)
	$(BIN)/python -m benchmarks.run --full

# Nothing is fetched while the site is built. The variable silences a notice about other versions of mkdocs.
docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

$(VENV_MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "seqpe_zoo needs Python 3.10 or newer, and '$(PYTHON)' is not: name another, as in 'make test PYTHON=python3.11'." >&2; \
	  exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(RUNTIME_INSTALLED): $(VENV_MADE) pyproject.toml constraints.txt
	$(PIP_INSTALL) '.[train,plot]'
	@touch $@

# The dev extra contains the other two, so it satisfies the runtime targets as well.
$(DEV_INSTALLED): $(VENV_MADE) pyproject.toml constraints.txt
	$(PIP_INSTALL) '.[dev]'
	@touch $(RUNTIME_INSTALLED) $@

$(DOCS_INSTALLED): $(VENV_MADE) pyproject.toml constraints.txt
	$(PIP_INSTALL) '.[docs]'
	@touch $@

$(OLDEST_INSTALLED): pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/python -m pip install --constraint constraints-oldest.txt --editable . $(TEST_TOOLS)
	@touch $@

$(NEWEST_INSTALLED): pyproject.toml
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/python -m pip install --editable . $(TEST_TOOLS)
	@touch $@

clean:
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-oldest .venv-newest
