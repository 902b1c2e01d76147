# Vestibule. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## Serve two tenants on loopback until Ctrl-C (ONCE=1: make the requests and stop)
	cargo build --locked --profile demo -p vestibule-cli -p vestibule-demo
	e2e/demo/run

.PHONY: test
test: ## Everything: format, lints, dependencies, unit, property, component, fuzz, demo
	e2e/test

.PHONY: quick
quick: ## The workspace's own tests only
	cargo test --locked --workspace

.PHONY: lint
lint: ## Format and lints
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: deny
deny: ## Licences, bans, sources and advisories of every dependency
	e2e/deny

.PHONY: fuzz
fuzz: ## Every fuzz target, RUNS executions each (default 100000)
	fuzz/run $(if $(RUNS),-n $(RUNS))

.PHONY: bench
bench: ## The proxy beside HAProxy and Envoy (minutes; prints a table)
	e2e/bench/run

.PHONY: build
build: ## Release binaries: vestibule and vestibule-proxy
	cargo build --locked --release -p vestibule-cli -p vestibule-proxy
