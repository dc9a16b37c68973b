package main

import (
	"fmt"
	"os/exec"

	"github.com/kvfs/kvfs/tests/harness/netns"
)

// topicTable has all topics, in the order in which they are measured and printed.
func topicTable() []topic {
	nodes := func(*bench) string { return netns.Lacks() }
	return []topic{
		// Blocks in memory, beside a tmpfs, the page cache of a disk and go-fuse's loopback.
		{"read", nothing, throughput("Hot reads", "(open, one read, close)", (*blockSet).read)},
		{"write", nothing, throughput("Writes over existing names",
			"(open a temporary file, one write, close, rename over the block)", (*blockSet).store)}, // as vLLM does
		{"fresh", nothing, throughput("Writes of new names",
			"(the same; the blocks are removed outside of the timing)", (*blockSet).store)},
		{"full", noDisk, (*job).full},
		{"open", nothing, perTarget("Open and close of a hot block, without a read", (*blockSet).openClose, "us", "times the best",
			func(perSec, toBest float64) []any {
				return []any{fmt.Sprintf("%.1f", 1e6/perSec), fmt.Sprintf("%.1f", 1/toBest)}
			})},
		{"stat", nothing, perTarget("Stat of a hot block's name", (*blockSet).stat, "stat/s", "to the best",
			func(perSec, toBest float64) []any { return []any{fmt.Sprintf("%.0f", perSec), toBest} })},
		{"ops", nothing, (*job).requests},
		{"cpu", nothing, (*job).daemonCPU},
		{"readdir", nothing, (*job).readdir},
		{"heap", nothing, (*job).heap},
		// The disk tier, beside fio and plain files.
		{"cold", need(noDisk, fioName), (*job).cold},
		{"drain", need(noDisk, fioName), (*job).drain},
		{"hotcascade", noDisk, (*job).hotCascade},
		{"recovery", noDisk, (*job).recovery},
		{"prefetch", noDisk, (*job).prefetch},
		{"lookfirst", noDisk, (*job).lookFirst},
		// Other nodes, in network namespaces, beside iperf3, sendfile and Redis.
		{"peer", need(nodes, iperfName), (*job).promotions},
		{"peerlatency", need(nodes, wires()[0].program), (*job).peerLatency},
		{"lookup", nodes, (*job).lookups},
		{"replica", need(nodes, iperfName), (*job).replicas},
		{"spread", nodes, (*job).spread},
		{"fleet", nodes, (*job).fleet},
		// The control directory.
		{"query", need(nothing, "python3"), (*job).query},
		// Ways to run.
		{"store", nothing, (*job).store},
		{"takeover", noRoot, (*job).takeover},
		// An engine, other stores, object storage.
		{"ttft", nothing, (*job).ttft},
		{"rivals", nothing, (*job).rivals},
		{"object", noRoot, (*job).object},
	}
}

// need adds programs to what a topic needs. make bench installs them.
func need(lacks func(*bench) string, programs ...string) func(*bench) string {
	return func(b *bench) string {
		for _, name := range programs {
			if _, err := exec.LookPath(name); err != nil {
				return err.Error()
			}
		}
		return lacks(b)
	}
}

func nothing(*bench) string { return "" }

// topics are their names.
func topics() []string {
	var names []string
	for _, t := range topicTable() {
		names = append(names, t.name)
	}
	return names
}
