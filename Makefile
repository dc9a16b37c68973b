# `make` prints the targets. CI calls these and nothing else: see .ci/run.
.DEFAULT_GOAL := help
.PHONY: help build run run-deps cluster test race lint fuzz bench bench-quick clean

# The tag puts io_uring into directio; giouring, its binding, reaches into the
# runtime by linkname. Without both kvfs builds, too, and uses pread and pwrite.
LINK := -tags=giouring -ldflags=-checklinkname=0
LIBRARIES = $$(go list ./... | grep -v /tests)
TIMEOUT := -timeout=15m

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

build: ## compile bin/kvfs
	go build $(LINK) -o bin/kvfs ./cmd/kvfs

run: run-deps build ## install what is missing, build, mount on ./mnt until Ctrl-C
	@exec .ci/try

run-deps:
	@.ci/deps run

cluster: ## three nodes on this machine: write on one, read on the others, kill one (as root)
	@.ci/deps cluster
	@$(MAKE) --no-print-directory build
	@exec .ci/cluster

test: ## install what is missing, run every test, count what passed, failed and was skipped
	@.ci/deps test
	go build -o bin/report ./tests/report
	@bin/report -vet -- $(TIMEOUT) -race $(LINK) $(LIBRARIES) -- $(TIMEOUT) $(LINK) ./tests/...

race: ## run every test under the race detector, the daemon included
	@.ci/deps test
	go test -race $(TIMEOUT) $(LINK) ./...

lint: ## gofmt, vet, staticcheck, build without cgo and without io_uring, imports and style
	@.ci/lint

fuzz: ## run each fuzz target for FUZZTIME (5s)
	@.ci/fuzz

bench: ## measure kvfs next to tmpfs, a disk and others
	@.ci/deps bench
	go run $(LINK) ./tests/bench

bench-quick: ## the same in a minute, to see that it works
	@.ci/deps bench
	go run $(LINK) ./tests/bench -quick

clean: ## remove what was built
	rm -rf bin
