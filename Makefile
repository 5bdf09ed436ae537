# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-all setup lint types format benchmarks docs clean

demo: setup
	$(BIN)/pamerge demo

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

# also what takes minutes: kills and resumes, several processes, thousands of damaged files, real faces
test-all: lint types
	HYPOTHESIS_PROFILE=random OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml runtime/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pamerge needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ./runtime -e '.[dev]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmarks: setup
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

# the documentation as a static site in site/; a warning is an error
docs: $(VENV)/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.docs-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache site
