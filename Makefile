# Vestibule. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## Serve two tenants on loopback until Ctrl-C (ONCE=1: make the requests and stop)
	$(if $(BIN),,cargo build --locked --profile demo -p vestibule-cli -p vestibule-demo)
	e2e/demo/run

.PHONY: test
test: ## Everything: format, lints, dependencies, unit, property, component, fuzz, demo, cluster
	e2e/test

.PHONY: prepare
prepare: ## Fetch and build all that the tests need of the network (make test does it, too)
	e2e/prepare

.PHONY: quick
quick: ## The workspace's own tests only, most properties with a quarter of the random cases
	VESTIBULE_QUICK=1 e2e/workspace-tests

.PHONY: lint
lint: ## Format and lints
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: deny
deny: ## Licences, bans, sources and advisories of every dependency
	e2e/deny

.PHONY: shellcheck
shellcheck: ## The shell scripts
	e2e/shellcheck

.PHONY: prose
prose: ## The prose of pages and comments (FILES=names: only these)
	e2e/prose $(FILES)

.PHONY: fuzz
fuzz: ## Every fuzz target, RUNS executions each (default 100000)
	fuzz/run $(if $(RUNS),-n $(RUNS))

.PHONY: bench
bench: ## The proxy beside HAProxy, Envoy, nginx and hitch (hours; ARGS=--quick: ten minutes, ARGS=--help)
	e2e/bench/run --html target/bench/bench.html --json target/bench/bench.json $(ARGS)

.PHONY: bench-scale
bench-scale: ## Operator and proxy at 10 and at 2,500 ListenerSets (minutes; ARGS=--help)
	cargo build --quiet --profile $(or $(PROFILE),release) -p vestibule-proxy -p vestibule-bench
	target/$(or $(PROFILE),release)/vestibule-bench scale $(ARGS)

.PHONY: bench-admission
bench-admission: ## The webhook's answers at 10 and at 2,500 ListenerSets (a minute; ARGS=--help)
	cargo build --quiet --profile $(or $(PROFILE),release) -p vestibule-bench
	target/$(or $(PROFILE),release)/vestibule-bench admission $(ARGS)

.PHONY: bench-neighbours
bench-neighbours: ## One tenant's latency beside hostile neighbours, at the proxy, HAProxy and Envoy (a quarter of an hour; ARGS=--help)
	e2e/bench/run neighbours --html target/bench/neighbours.html $(ARGS)

.PHONY: soak
soak: ## Half an hour of mixed traffic, edits, deaths and restarts: nothing fails, memory is flat (ARGS='--minutes 5')
	cargo build --quiet --profile $(or $(PROFILE),release) -p vestibule-cli -p vestibule-bench
	target/$(or $(PROFILE),release)/vestibule-bench soak $(ARGS)

.PHONY: bench-cluster
bench-cluster: ## gateway-api-bench's methods on a cluster, beside what it published of others (a quarter of an hour)
	VESTIBULE_PROFILE=$(or $(PROFILE),release) e2e/cluster/e2e --filter bench-

.PHONY: build
build: ## Release binaries: vestibule, and the three that the images hold
	cargo build --locked --release -p vestibule-cli -p vestibule-proxy -p vestibule-operator
	cargo build --locked --release -p vestibule-webhook --features server

.PHONY: images
images: ## Images of operator, webhook and proxy, as tars (ARCH=arm64, PROFILE=demo)
	e2e/images/build $(if $(ARCH),--arch $(ARCH)) $(if $(PROFILE),--profile $(PROFILE))

.PHONY: cluster-up
cluster-up: ## A cluster for the end-to-end tests: kind, three nodes (then: e2e/cluster/run kubectl get nodes)
	e2e/cluster/up

.PHONY: cluster-down
cluster-down: ## End that cluster
	e2e/cluster/down

.PHONY: e2e
e2e: ## The end-to-end tests on a cluster (FILTER=name: only scenarios with that in their name)
	e2e/cluster/e2e $(if $(FILTER),--filter $(FILTER))

.PHONY: conformance
conformance: ## The official suite on the cluster that is up, with upstream's report (TESTS=names: only these; CHANNEL=standard: on that channel's CRDs)
	e2e/conformance/run $(if $(CHANNEL),--channel $(CHANNEL)) $(or $(TESTS),--report docs/conformance)
