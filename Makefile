# Tests start hundreds of processes; each would compile our modules again where this is set.
export PYTHONDONTWRITEBYTECODE :=

# Set-up is `make demo` or `make test`; both make .venv from requirements.lock first.
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.bench-installed

.PHONY: demo test conformance sample fuzz drill docker-test bench lint fix clean lock

$(STAMP): requirements.lock pyproject.toml
	@$(PY) .ci/install.py $(VENV) -r requirements.lock
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m relaxc demo

# One more process than cores, at most 5: tests that wait for a server or a child leave a fifth of two cores idle.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 5)))
test: $(STAMP) lint
	@echo "tests: 5,000 small ones on $(WORKERS) processes; some ten minutes on two cores"
	@$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal

# What is too slow for `make test`: models at length, products of parameters in full, drills. Hours.
conformance: $(STAMP)
	$(BIN)/python -m pytest -m slow

# What of `make conformance` is done in LIMIT seconds, in an order that SEED decides: the same seed repeats it.
SEED ?= $(shell date +%F)
LIMIT ?= 600
sample: $(STAMP)
	@$(BIN)/python -m tests.sample --seed "$(SEED)" --limit-s "$(LIMIT)"

# Random graphs of SEED, compiled and compared, for FUZZ_LIMIT seconds: docs/fuzzing.md. It goes on where it was cut off.
FUZZ_LIMIT ?= 36000
FUZZ_FAILS ?=
fuzz: $(STAMP)
	@$(BIN)/python -m tests.fuzz --seed "$(SEED)" --limit-s "$(FUZZ_LIMIT)" $(if $(FUZZ_FAILS),--fails $(FUZZ_FAILS))

# kill -9 of servers, children and PostgreSQL while clients work: 250 rounds on each database, an hour each on two cores.
# It goes on where it was cut off; `rm -r build/drill` begins anew. Before it a disk that fills while 16 clients work, for
# two minutes: that mounts a small one, and so needs root.
ROUNDS ?= 250
drill: $(STAMP)
	$(BIN)/python -m tests.drills.disk --seconds 120
	$(BIN)/python -m tests.drills.crash --rounds $(ROUNDS) --database sqlite --journal build/drill/crash.jsonl
	$(BIN)/python -m tests.drills.crash --rounds $(ROUNDS) --database postgresql --journal build/drill/crash.jsonl
	$(BIN)/python -m tests.drills.fleet --rounds 20
	$(BIN)/python -m tests.drills.ray --rounds 20

# The images of docker/ built and run in an engine; as root it starts one where none runs (docs/docker.md). DOCKER_LIMIT ends
# it after so many seconds, which is no failure.
DOCKER_LIMIT ?=
docker-test: $(STAMP)
	$(BIN)/python $(if $(DOCKER_LIMIT),-m tests.limited --limit-s $(DOCKER_LIMIT),-m pytest -m slow -rs) \
	    tests/docker tests/test_wheel.py

# TVM's wheels for aarch64: `relaxc package --runtime build/aarch64` takes its runtime out of them, and tests run that
# under qemu-user (tests/packaging/test_aarch64.py).
build/aarch64: requirements.lock $(STAMP)
	@mkdir -p $@
	$(BIN)/python -m pip download -q --no-deps --only-binary=:all: --platform manylinux_2_28_aarch64 --dest $@ \
	    $$(grep -E '^apache-tvm(-ffi)?==' requirements.lock)
	@touch $@

# The runtimes to compare with, and matplotlib: 100 MB that nothing else needs.
$(BENCH_STAMP): requirements-bench.lock $(STAMP)
	$(BIN)/python -m pip install -q -c requirements.lock -r requirements-bench.lock
	touch $@

# Three models beside two runtimes, in about two minutes. `python -m benchmarks.peers` alone times all of the bars.
bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.peers resnet18 mobilenet_v2 bert --peers onnxruntime,openvino --rounds 5

lint: $(STAMP)
	@echo "lint: ruff, then mypy, which takes a minute the first time"
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m docs.generate

# Writes both locks from what a fresh .venv has installed; run it after changing a pin in pyproject.toml.
# requirements-bench.lock has what the extra `bench` adds.
lock:
	$(BIN)/python -m pip install -q -e ".[client,onnx,torch,triton,server,tune,ray,dev]"
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements.lock
	$(BIN)/python -m pip install -q -e ".[bench]"
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -vxF -f requirements.lock > requirements-bench.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
