# Copyright The Railbond Authors.
# SPDX-License-Identifier: Apache-2.0

GO ?= go
# The program needs no C compiler; only the race detector does.
export CGO_ENABLED = 0

# Test packages side by side: half the cores, as data-path tests run several ranks that poll.
CORES := $(shell nproc 2>/dev/null || echo 2)
P ?= $(shell n=$$(( $(CORES) / 2 )); [ $$n -gt 1 ] && echo $$n || echo 1)
FUZZTIME ?= 20s
PKG ?= ./...

# Stamp the commit into the program where there is one to stamp; stated, as GOFLAGS may say otherwise.
BUILDVCS := $(shell git rev-parse --verify -q HEAD >/dev/null 2>&1 && echo true || echo false)
NESTED := $(patsubst ./%/go.mod,%,$(shell find . -mindepth 2 -name go.mod -not -path '*/testdata/*'))

# NVRTC as tools/install-nvrtc leaves it; the tests look here unless told otherwise.
ifneq ($(wildcard .cache/nvrtc/site),)
export RAILBOND_NVRTC ?= $(abspath .cache/nvrtc/site)
endif

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/railbond, one static program
	$(GO) build -trimpath -buildvcs=$(BUILDVCS) -o bin/railbond ./cmd/railbond

.PHONY: demo
demo: build ## expert parallelism on this machine, in under a minute
	bin/railbond ep demo

.PHONY: deps
deps: ## install what the tests need (Debian, Ubuntu)
	@tools/install-test-deps
	@tools/install-nvrtc

.PHONY: test
test: deps ## every test, without and with the race detector
	$(MAKE) --no-print-directory test-nested test-plain test-race

# Also under make -j: two test runs at once would take each other's cores.
.NOTPARALLEL:

.PHONY: test-plain
test-plain:
	RAILBOND_TEST_REQUIRE=1 $(GO) test -count=1 -p $(P) -timeout 12m $(PKG)

.PHONY: test-race
test-race:
	RAILBOND_TEST_REQUIRE=1 CGO_ENABLED=1 $(GO) test -race -count=1 -p $(P) -timeout 20m $(PKG)

.PHONY: test-nested
test-nested:
	@set -e; for m in $(NESTED); do echo "go vet ./... in $$m"; (cd $$m && $(GO) vet ./...); done

.PHONY: gpu-test
gpu-test: ## the tests and benchmarks that need NVIDIA GPUs; they skip without
	$(GO) test -count=1 -p 1 -timeout 20m -run GPU -bench GPU -v ./cuda/... ./ep/device/...

.PHONY: lint
lint: ## the rules of this repository, go vet and the cross build
	$(GO) test -count=1 ./internal/lint

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (20s)
	@GO=$(GO) FUZZTIME=$(FUZZTIME) tools/fuzz $(PKG)

.PHONY: bench
bench: ## every benchmark, with allocations
	$(GO) test -run '^$$' -bench . -benchmem -p 1 $(PKG)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
