# Two commands matter: `make demo` shows the product, `make test` proves it. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Tests of the real node need root; without it they are shown as ignored, never as passed.
NODE_TESTS := $(if $(filter 0,$(shell id -u)),--include-ignored)

# The whole workspace, so that programs and tests share what is compiled: features are chosen by what is built together.
BUILD := cargo build --workspace --bins --locked
PROGRAMS := $(or $(CARGO_TARGET_DIR),target)/debug

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## Set up a real control plane and two registries, and show the operator at work
	@cluster/prerequisites.sh demo
	@cluster/build.sh programs controlplane registry >/dev/null
	$(BUILD)
	@$(PROGRAMS)/demo

.PHONY: test
test: prerequisites assets lint ## Set up everything and run every check and test
	cargo test --workspace --lib --bins --tests --no-fail-fast --locked -- $(NODE_TESTS)

.PHONY: lint
lint: ## Formatting and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

.PHONY: bench
bench: prerequisites assets ## Measure: filters matched together, and the memory of an operator that knows 10,000 Pods
	cargo bench --quiet -p fairlead-domain --bench filters
	FAIRLEAD_TEST_PODS=10000 cargo test --quiet --release -p fairlead --test suite memory -- --nocapture

.PHONY: bless
bless: ## Write the generated files again (CRDs, manifests, chart, reference) after a change of the types
	FAIRLEAD_BLESS=1 cargo test --workspace -- generated

.PHONY: cluster
cluster: prerequisites assets ## Leave a real cluster with a node and two registries running, and say how to use it
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
