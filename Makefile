# Two commands matter: `make demo` shows the product, `make test` proves it. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Tests of the real node need root; without it they are shown as ignored, never as passed.
NODE_TESTS := $(if $(filter 0,$(shell id -u)),--include-ignored)

# Most tests wait for a cluster or a clock more than they compute. Two programs with tests run at a time.
export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))

# Property tests draw the same cases every time, so that a change is judged by what it changes. Another seed explores
# others; `cargo test` alone draws new ones each time.
export PROPTEST_RNG_SEED ?= 1

# The whole workspace, so that programs and tests share what is compiled: features are chosen by what is built together.
BUILD := cargo build --workspace --bins --locked
PROGRAMS := $(or $(CARGO_TARGET_DIR),target)/debug
RELEASED := $(or $(CARGO_TARGET_DIR),target)/release
# Registries write every layer through to their disk and wait for it, so what they hold is kept in memory if there is
# room for so many KiB, and programs may run there: else it is the disk that tests wait for, and that is measured.
memory_or_disk = $(shell room=$$(df --output=avail /dev/shm 2>/dev/null | tail -n1); \
  free=$$(awk '/^MemAvailable:/ {print $$2}' /proc/meminfo); \
  if [ "$${room:-0}" -gt $(1) ] && [ "$${free:-0}" -gt $(1) ] && ! grep -q '^[^ ]* /dev/shm .*noexec' /proc/mounts; \
  then echo /dev/shm; else echo $${TMPDIR:-/tmp}; fi)
BENCH_DIR ?= $(call memory_or_disk,16000000)
TEST_DIR ?= $(call memory_or_disk,12000000)

DEMO_PARTS := programs controlplane registry $(if $(filter 0,$(shell id -u)),containerd)

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## Set up a real cluster and two registries, and show a Pod surviving the loss of its registry
	@cluster/prerequisites.sh demo
	@go=$$(cluster/build.sh --forecast $(DEMO_PARTS)); rust=0; [ -x $(PROGRAMS)/demo ] || rust=10; \
	  if ((go + rust)); then echo "The first run compiles, once:$$( ((!go)) || echo " Kubernetes from its Go modules;")$$( \
	    ((!rust)) || echo " Fairlead and its tools;") about $$(((go + rust + $$(nproc) - 1) / $$(nproc))) minutes on $$(nproc) cores." \
	    "Later runs start in seconds."; fi
	@cluster/build.sh $(DEMO_PARTS) >/dev/null
	$(BUILD)
	@$(PROGRAMS)/demo

.PHONY: test
test: prerequisites assets lint ## Set up everything and run every check and test
	$(if $(NODE_TESTS),@$(MAKE) --no-print-directory static)
	cargo test --workspace --lib --bins --tests --no-run --locked
	@echo "The tests of the program run beside those of its parts; each half prints what it found when it ends."
	@TMPDIR=$(TEST_DIR) GOMAXPROCS=1 GOGC=400 \
	  $(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target test-program test-parts

# Each half waits for clusters and clocks while the other one computes. All of the workspace is named in both, because
# what is named decides about features, and nothing is to be compiled again.
.PHONY: test-program test-parts
test-program:
	cargo test --workspace --test program --no-fail-fast --locked -- $(NODE_TESTS)
test-parts:
	cargo test --workspace --lib --bins --test suite --no-fail-fast --locked -- $(NODE_TESTS)

# Built before the tests that need it, because a compiler beside them would slow down all others. Without optimisation:
# a release takes minutes more and differs in nothing that is tested. Symbols are half of it, and every byte is hashed
# several times on its way to a node.
.PHONY: static
static: ## Build the static program that images hold, as tests use it
	cargo build --locked --package fairlead --bin fairlead --target x86_64-unknown-linux-musl \
	  --config 'profile.dev.strip="symbols"'

.PHONY: lint
lint: ## Formatting and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

.PHONY: bench
bench: prerequisites assets ## Measure beside other programs: copies, mirroring, warming, healing, nodes, inventory, admission, probes, filters, merging, memory; fails if a bar is not held
	@cluster/prerequisites.sh bench
	@cluster/build.sh crane >/dev/null
	cargo build --release --workspace --bin fairlead --bin bench --locked
	cargo bench --workspace --bench filters --bench merge --bench probes --no-run --locked
	@failed=0; \
	  TMPDIR=$(BENCH_DIR) $(RELEASED)/bench copies || failed=1; \
	  TMPDIR=$(BENCH_DIR) $(RELEASED)/bench mirror || failed=1; \
	  TMPDIR=$(BENCH_DIR) $(RELEASED)/bench warm || failed=1; \
	  TMPDIR=$(BENCH_DIR) $(RELEASED)/bench heal || failed=1; \
	  TMPDIR=$(BENCH_DIR) $(RELEASED)/bench inventory || failed=1; \
	  TMPDIR=$(BENCH_DIR) $(RELEASED)/bench admission || failed=1; \
	  TMPDIR=$(BENCH_DIR) cargo bench --quiet --workspace --bench probes || failed=1; \
	  cargo bench --quiet --workspace --bench filters || failed=1; \
	  cargo bench --quiet --workspace --bench merge || failed=1; \
	  TMPDIR=$(BENCH_DIR) $(RELEASED)/bench nodes || failed=1; \
	  FAIRLEAD_TEST_PODS=10000 cargo test --quiet --release -p fairlead --test program memory -- --nocapture || failed=1; \
	  if ((failed)); then echo "Something above was not held or could not be measured."; exit 1; fi

.PHONY: bless
bless: ## Write the generated files again (CRDs, manifests, chart, reference) after a change of the types
	FAIRLEAD_BLESS=1 cargo test --workspace -- generated

.PHONY: cluster
cluster: prerequisites assets ## Leave a real cluster with a node, registries and Fairlead running, and say how to use it
	$(BUILD)
	@$(PROGRAMS)/cluster up

.PHONY: cluster-down
cluster-down: ## End the cluster of `make cluster`
	$(BUILD)
	@$(PROGRAMS)/cluster down

.PHONY: prerequisites
prerequisites:
	@cluster/prerequisites.sh

.PHONY: assets
assets:
	@cluster/build.sh >/dev/null
