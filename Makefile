# Each target sets up what it needs: `predict` the program, `test` and `lint` the tools as well.
PYTHON ?= python3
BIN := .venv/bin
PROGRAM := .venv/program.stamp
TOOLS := .venv/tools.stamp
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
TEST_WORKERS ?= 2

.PHONY: predict test lint check bench mutants fuzz faults clean

predict: $(PROGRAM)
	@$(BIN)/perfmodel predict --topology dgx_h100.yaml

test: $(TOOLS)
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal

lint: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: test lint

bench: $(TOOLS)
	$(BIN)/pytest -m benchmark -s -q tests/benchmarks

mutants: $(TOOLS)
	$(BIN)/python -m tests.mutants --seed $(or $(SEED),1) --count $(or $(COUNT),100)

fuzz: $(TOOLS)
	$(BIN)/python -m tests.fuzz --seed $(or $(SEED),1) --count $(or $(COUNT),10000)

faults: $(TOOLS)
	$(BIN)/python -m tests.faults --seed $(or $(SEED),1) --runs $(or $(RUNS),50)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(PROGRAM): pyproject.toml constraints.txt
	@echo "Setting up .venv with the program (once, a few minutes) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "perfmodel needs Python 3.11 or newer. Try: make PYTHON=python3.11 predict" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --editable .
	@touch $@

$(TOOLS): $(PROGRAM)
	@echo "Adding the tools for tests and lint to .venv (once, a few minutes) ..."
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[dev]'
	@touch $@
