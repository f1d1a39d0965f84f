# Everything that one does with this repository. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Functions and tools are found in the virtual environment first.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The tests start the service hundreds of times: without its bytecode each start takes a third longer.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_FLAGS ?=
# The picture of the page that a benchmark wrote its table into.
PICTURE = $(if $(findstring --update,$(ARGS)),python -m bench.plot $(lastword $(ARGS)))
# What is measured is what the image has.
PROGRAMS = if command -v cargo >/dev/null; then sh rust/wrapper/build.sh && sh rust/front/build.sh; else echo "no cargo: Python serves the port"; fi
CLUSTER := PYTHONPATH=tests python -m cluster
# Notes how long a stage took, for .ci/run.
TIMED := sh tests/timed.sh

.DEFAULT_GOAL := help
.PHONY: help setup run test check format kubernetes control-plane e2e cluster-up cluster-down cluster-shell bench bench-pods wrapper front programs images proto lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## install everything for development into .venv (run and test do it by themselves)

run: $(VENV)/.run ## start the service on port 9445 with the functions of this repository
	exec krm-runner serve --disable-runtimes=pod --functions=functions --config=config.yaml $(ARGS)

test: $(VENV)/.dev ## fast tests: unit and integration, of the wrapper server and the front too
	$(TIMED) "test: Rust" sh tests/crates/test.sh
	$(TIMED) "test: programs" sh tests/crates/build.sh
	$(TIMED) "test: tools" sh tests/integration/ensure-tools.sh
	sh tests/side-by-side.sh test --dist=loadfile tests/unit tests/integration $(PYTEST_FLAGS)

kubernetes: $(VENV)/.dev programs ## build the Kubernetes and the tools that the tests below need, once
	@sh tests/e2e/ensure-go.sh
	$(TIMED) "Kubernetes and images" env $(CLUSTER) build
	$(TIMED) "Go tools" sh -c 'if command -v go >/dev/null; then PYTHONPATH=tests python -m support.go_tools; fi'

control-plane: kubernetes ## the pod runtime on a real API server, with pods as processes of this machine
	@sh tests/integration/ensure-tools.sh
	sh tests/side-by-side.sh control-plane tests/control_plane $(PYTEST_FLAGS)

e2e: control-plane ## that, and tests that need the machine: Go clients, cgroups, load, a real Kubernetes
	sh tests/side-by-side.sh e2e --dist=loadfile tests/e2e --ignore=tests/e2e/cluster $(PYTEST_FLAGS)
	$(TIMED) "e2e: cluster, in all" env $(CLUSTER) run -- sh tests/side-by-side.sh "e2e: cluster" --dist=loadgroup tests/e2e/cluster $(PYTEST_FLAGS)

cluster-up: $(VENV)/.dev ## start a Kubernetes of our own for the tests (ARGS=--api-only: its API server alone)
	@$(CLUSTER) up $(ARGS)

cluster-down: $(VENV)/.dev ## stop it and remove every trace of it
	@$(CLUSTER) down

cluster-shell: $(VENV)/.dev ## a shell in its network, with kubectl
	@$(CLUSTER) shell

check: $(VENV)/.dev ## formatting, lint, types, import contracts, generated code
	$(TIMED) "check: ruff format" ruff format --check .
	$(TIMED) "check: ruff" ruff check .
	$(TIMED) "check: import contracts" lint-imports --no-logo
	$(TIMED) "check: mypy" mypy
	$(TIMED) "check: pyright" pyright
	$(TIMED) "check: generated code" sh proto/check.sh
	$(TIMED) "check: Rust" sh tests/crates/check.sh

format: $(VENV)/.dev ## format the code and mend what lint can mend
	ruff check --fix .
	ruff format .
	@if command -v cargo >/dev/null; then cargo fmt --all; fi

wrapper: ## build the wrapper server: build/programs/release/wrapper-server
	sh rust/wrapper/build.sh

front: $(BIN)/python ## build the front, build/programs/release/krm-front, and have the runner of .venv use it
	sh rust/front/build.sh

programs: $(BIN)/python ## build both as the tests use them, without whole-program optimization: build/programs/ci
	$(TIMED) "programs" sh tests/crates/build.sh

images: $(VENV)/.dev wrapper front ## write the images as OCI archives, with their parts lists: build/images/
	@python -m images

bench: $(VENV)/.dev ## benchmarks, as ratios of one run (ARGS=--quick, ARGS=--help)
	@$(PROGRAMS)
	python -m bench.envelope
	python -m bench.exec_runtime $(ARGS)
	python -m bench.standby $(if $(findstring --quick,$(ARGS)),--quick)
	python -m bench.overload $(if $(findstring --quick,$(ARGS)),--quick)
	python -m bench.wrapper_server $(if $(findstring --quick,$(ARGS)),--quick)
	PYTHONPATH=tests python -m bench.port $(if $(findstring --quick,$(ARGS)),--quick)
	$(PICTURE)

bench-pods: $(VENV)/.dev ## calls through the pod runtime: further ones, with many pods, first ones and their neighbours on the tests' Kubernetes (ARGS=--quick, ARGS="--update docs/performance.md")
	@$(PROGRAMS)
	$(CLUSTER) build
	PYTHONPATH=tests python -m bench.warm_path $(ARGS)
	PYTHONPATH=tests python -m bench.pool_size $(ARGS)
	$(CLUSTER) run -- python -m bench.cluster_path $(ARGS)
	$(CLUSTER) run -- python -m bench.pod_runtime $(ARGS)
	$(CLUSTER) run -- python -m bench.neighbours $(ARGS)
	$(PICTURE)

proto: $(VENV)/.dev ## generate code from proto/
	python -m grpc_tools.protoc -Iproto --python_out=src/krm_runner/rpc/_generated --pyi_out=src/krm_runner/rpc/_generated evaluator.proto front.proto
	python proto/descriptors.py rust/engine/src/rpc/descriptors.bin

lock: $(VENV)/.dev ## pin the newest versions of all dependencies, with hashes
	for name in run dev go; do \
		uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
			requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done
	python -m images.debian >/dev/null

clean: ## remove everything that was built here
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache build dist target

$(BIN)/python:
	@sh requirements/make-venv.sh "$(PYTHON)" "$(VENV)"

$(VENV)/.run: $(BIN)/python requirements/run.txt pyproject.toml
	@echo "installing krm-runner into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "installing the development tools into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@
