# Set-up is `make demo` or `make test`; both make .venv from requirements.lock first.
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test conformance bench lint fix clean lock

$(STAMP): requirements.lock pyproject.toml
	$(PY) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -m "not slow"

conformance: $(STAMP)
	$(BIN)/python -m pytest tests/conformance -m "slow or not slow"

bench: $(STAMP)
	$(BIN)/python -m benchmarks.models

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m docs.generate

# Writes requirements.lock from what is installed; run it after changing a pin in pyproject.toml.
lock:
	$(BIN)/python -m pip install -q -e ".[onnx,torch,server,tune,dev]"
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
