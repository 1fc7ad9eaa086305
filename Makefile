# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Variables: FLAVOUR=cpu|gpu, PYTHON=python3.12, PIP_OPTIONS="...", TORCH_INDEX=ADDRESS, VENV=.venv (see scripts/setup.sh), PYTEST_ARGS="...", WORKERS=2

VENV ?= .venv
# An engine under test works on one core, so two files are run at once (tests/conftest.py: which, and in which order);
# two would not share a GPU.
WORKERS ?= $(shell command -v nvidia-smi > /dev/null && echo 0 || echo 2)
# Hundreds of processes are started, which would each compile our files where Python is told to keep none compiled.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS)
BIN := $(VENV)/bin
TRAINING := build/train-demo
export VENV FLAVOUR PYTHON PIP_OPTIONS TORCH_INDEX

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-all train-demo serve bench test test-all test-fast test-tritons test-sanitized lint format docs clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## Make the virtual environment, if there is none or it is out of date
	@bash scripts/setup.sh

demo: setup ## Serve the bundled models with and without drafts and compare (writes demo.json and demo.png)
	@$(BIN)/vllm-specext demo --json demo.json --plot demo.png

demo-all: setup ## The same with every method
	@$(BIN)/vllm-specext demo --all --json demo.json --plot demo.png

train-demo: setup ## Train a GRIFFIN drafter for the bundled target within half an hour (into build/train-demo)
	@$(BIN)/python -m vllm_specext.demo.make_rows --work $(TRAINING)
	@$(BIN)/vllm-specext train griffin --target vllm_specext/demo/models/target --data $(TRAINING)/rows.jsonl \
	  --output $(TRAINING)/run --recipe vllm_specext/demo/train_demo.toml --max-length 288 --dtype float32 \
	  --temperature 0 --processes 2
	@$(BIN)/python -m vllm_specext.demo.acceptance griffin --work $(TRAINING) --drafter $(TRAINING)/run/drafter \
	  --least-code 2.6 --least-prose 3

serve: setup ## Leave an OpenAI server with GRIFFIN drafts running on the bundled models
	@$(BIN)/vllm-specext demo --serve

bench: setup ## Compare the methods with plain decoding, by concurrent requests and size of tree (into bench-results/)
	@$(BIN)/vllm-specext bench sweep --quick --output bench-results

test: setup ## Run the tests
	@$(PYTEST) $(PYTEST_ARGS)

test-all: setup ## Run the tests, with the further configurations that `test` leaves out
	@$(PYTEST) -m "" $(PYTEST_ARGS)

test-fast: setup ## Run the tests that take less than a minute each
	@$(PYTEST) -m "not slow and not extended" $(PYTEST_ARGS)

# Of torch 2.11, and of vLLM 0.32 on a GPU.
TRITONS := 3.6.0 3.7.0
COMPILED := $(addprefix tests/kernels/test_,attention_compilation.py compilation.py relaunch.py token_guided_fusion_kernels.py)
test-tritons: setup ## Compile the kernels for every GPU with the Triton of other installations, too (~700 MB each)
	@set -e; for version in $(TRITONS); do \
	  test -d build/triton/$$version || $(BIN)/python -m pip install --quiet --no-deps $(PIP_OPTIONS) \
	    --target build/triton/$$version triton==$$version; \
	  echo "Triton $$version"; \
	  PYTHONPATH=build/triton/$$version $(PYTEST) -m "" $(COMPILED) $(PYTEST_ARGS); \
	done

# Tensors lie in memory that the preloaded library hands out, so that leaving one is noticed.
PRELOADED = $(shell g++ -print-file-name=libasan.so):$(shell g++ -print-file-name=libubsan.so)
test-sanitized: setup ## Test the bodies in C++ with g++'s checks of addresses and arithmetic, and engines on memory full of NaN
	@env CXX=scripts/sanitizing_cxx.sh XDG_CACHE_HOME=$(CURDIR)/build/sanitized OMP_NUM_THREADS=2 \
	  LD_PRELOAD=$(PRELOADED) ASAN_OPTIONS=detect_leaks=0 $(BIN)/python -m pytest -k C++ tests/kernels
	@FILL_NEW_MEMORY=1 $(PYTEST) tests/engine $(PYTEST_ARGS)

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## Let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## Bring the documents' tables up to date and build the site in build/site, to be read without a network
	@$(BIN)/python -m pip install --quiet $(PIP_OPTIONS) --editable ".[docs]"
	@$(BIN)/python -m scripts.docs_tables
	@$(BIN)/python -m mkdocs build --strict

clean: ## Remove caches, builds and the virtual environment
	rm -rf $(VENV) build dist *.egg-info .ruff_cache .mypy_cache .pytest_cache .hypothesis
