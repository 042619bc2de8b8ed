# Every target sets up .venv by itself when it is missing or older than pyproject.toml and constraints.txt.
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

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips must not write to one environment under `make -j`.
.NOTPARALLEL:
.PHONY: help demo test test-fast lint bench docs clean distclean

help:
	@echo "make demo       train, extrapolate and plot for real on embedded data"
	@echo "make test       run all tests"
	@echo "make test-fast  run the tests that are not marked slow"
	@echo "make lint       ruff, ruff format, mypy"
	@echo "make bench      the short speed and memory comparison"
	@echo "make docs       build the documentation into site/ and check its links"
	@echo "make clean      remove caches and build output (make distclean: also $(VENV))"

demo: $(RUNTIME_INSTALLED)
	$(BIN)/seqpe-zoo demo

# The models of tests are tiny: one thread a process and a process a core beats more threads by far.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: $(DEV_INSTALLED)
	$(PYTEST)

test-fast: $(DEV_INSTALLED)
	$(PYTEST) -m "not slow"

lint: $(DEV_INSTALLED)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(RUNTIME_INSTALLED)
	$(BIN)/python -m benchmarks.run --short

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

clean:
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
