# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Variables: FLAVOUR=cpu|gpu, PYTHON=python3.12, PIP_OPTIONS="...", VENV=.venv (see scripts/setup.sh), PYTEST_ARGS="..."

VENV ?= .venv
BIN := $(VENV)/bin
export VENV FLAVOUR PYTHON PIP_OPTIONS

.DEFAULT_GOAL := help
.PHONY: help setup demo serve bench test test-all test-fast lint format clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## Make the virtual environment, if there is none or it is out of date
	@bash scripts/setup.sh

demo: setup ## Serve the bundled models with and without drafts and compare (writes demo.json)
	@$(BIN)/vllm-specext demo --json demo.json

serve: setup ## Leave an OpenAI server with GRIFFIN drafts running on the bundled models
	@$(BIN)/vllm-specext demo --serve

bench: setup ## Measure the bundled models with and without drafts at 1, 4 and 16 concurrent requests
	@$(BIN)/python -m benchmarks.concurrency --output benchmarks/results

test: setup ## Run the tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: setup ## Run the tests, with the further engine configurations that `test` leaves out
	@$(BIN)/python -m pytest -m "" $(PYTEST_ARGS)

test-fast: setup ## Run the tests that take less than a minute each
	@$(BIN)/python -m pytest -m "not slow and not extended" $(PYTEST_ARGS)

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## Let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove caches, builds and the virtual environment
	rm -rf $(VENV) build dist *.egg-info .ruff_cache .mypy_cache .pytest_cache .hypothesis
