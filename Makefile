# `make` prints the targets. CI calls these and nothing else: see .ci/run.
.DEFAULT_GOAL := help
.PHONY: help build dist run cluster simulate test test-all test-ceph test-rdma race mutations lint deadcode fuzz bench bench-quick site clean
DEPS := run-deps cluster-deps test-deps test-all-deps ceph-deps bench-deps dist-deps
.PHONY: $(DEPS)

# The tag giouring puts io_uring into directio; its binding reaches into the runtime by
# linkname. The tag ofi puts RDMA into rdma/fabric and needs cgo and the headers of
# libfabric. Without them kvfs builds, too: with pread and pwrite, and with TCP alone.
# Each recipe asks anew, as its prerequisite may have installed them.
LINK = -tags=giouring$(shell test -e /usr/include/rdma/fabric.h && command -v gcc >/dev/null && echo ,ofi) -ldflags=-checklinkname=0
RACED := ./...
# Tests wait more than they work: more packages at a time than there are processors.
REPORT = go build -o bin/report ./tests/report && exec bin/report $(if $(CI),-skips=tests/sets/skips.txt)
FLAGS = -p=6 -vet=off $(LINK)
RDMA ?= 1

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

build: ## compile bin/kvfs
	@echo "compiling kvfs; with an empty cache of Go that takes minutes"
	go build $(LINK) -o bin/kvfs ./cmd/kvfs

dist: dist-deps ## tarball, deb and rpm packages, container image for this machine, in dist/; ARCH=all for amd64 and arm64
	@exec .ci/dist $(ARCH)

run: run-deps build ## install what is missing, build, mount on ./mnt until Ctrl-C
	@exec .ci/try

$(DEPS): %-deps:
	@.ci/deps $* $(ARCH)

cluster: cluster-deps build ## three nodes on this machine: write on one, read on the others, kill one (as root)
	@exec .ci/cluster

NODES := 100
simulate: ## the cluster's own code with a virtual clock and up to NODES (100) nodes: tables; DOCS=docs puts them and plots into docs/cluster.md
	KVFS_SIM=$(NODES) go test -count=1 -timeout=2h -v $(LINK) -run '^(TestConvergence|TestSimulationTable|TestDigestBytes|TestSimulatedCluster)$$' \
		./cluster ./cluster/gossip ./cluster/feed | go run ./tests/simulate -docs=$(DOCS)

test: test-deps ## the tests to run before each commit, 5 minutes: install what is missing, count what passed, failed and was skipped
	@$(REPORT) -set=quick -- -short -timeout=40m $(FLAGS)

test-all: test-all-deps ## all other tests: install what is missing, count what passed, failed and was skipped
	@$(REPORT) -set=rest -- -timeout=40m $(FLAGS)

test-ceph: ceph-deps ## the tests of the tier on object storage, each with a Ceph cluster of its own
	KVFS_TEST_S3=ceph go test -count=1 -p=1 -timeout=1h -v $(LINK) ./tiers/object/bucket ./tests/object

test-rdma: ## two nodes over RDMA in a virtual machine with soft-RoCE: the verbs provider
	@KVFS_TEST_RDMA=$(RDMA) exec .ci/rdma

race: test-all-deps ## every test in its short form under the race detector, the daemon included; SET=quick and RACED='./tiers/...' take a part
	@$(REPORT) $(SET:%=-set=%) -- -race -short -timeout=60m $(FLAGS) $(RACED)

mutations: test-deps ## break the engine in 40 ways, and name what its tests do not notice; ONLY=3,7 takes a part
	go run ./tests/mutations $(ONLY:%=-only=%) -- -short $(LINK) -vet=off

lint: ## gofmt, vet, staticcheck, dead code, a build without cgo and flags, imports and style
	@.ci/lint

deadcode: ## list functions of the product that only tests call
	go run golang.org/x/tools/cmd/deadcode@v0.51.0 $(firstword $(LINK)) ./cmd/kvfs

fuzz: test-all-deps ## run each fuzz target with FUZZTIME (20000x) inputs
	@.ci/fuzz $(LINK)

# Without ARGS a run measures everything, and replaces the tables and plots of docs/benchmarks.md.
bench: ARGS ?= -threads 1,4 -timeout 3h -docs docs/benchmarks.md -plots docs
bench: bench-deps ## measure kvfs next to tmpfs, a disk and others into docs/benchmarks.md; ARGS='-only ttft' only prints a part
	go run $(LINK) ./tests/bench $(ARGS)

bench-quick: bench-deps ## the same in a minute, to see that it works
	go run $(LINK) ./tests/bench -quick

site: ## write the documentation as HTML to _site/; fails for a link that leads nowhere
	rm -rf _site
	go run ./docs/site _site

clean: ## remove what was built
	rm -rf bin _site
