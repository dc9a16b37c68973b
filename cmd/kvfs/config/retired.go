package config

import (
	"fmt"
	"strings"
)

// retired are the settings that became constants, because nobody had a case for another
// value: path and the constant, which stands at the code that uses it. They are accepted
// from all sources, and ignored.
var retired = []*setting{
	{path: "disk.sync_bytes", def: "64MiB", help: "bytes written to a directory after which kvfs makes them durable together"},
	{path: "disk.sync_interval", def: "1s", help: "time after which kvfs makes written bytes durable in any case"},
	{path: "promotion.batch_keys", def: "64", help: "most blocks of one request in one batch of loads"},
	{path: "promotion.batch_bytes", def: "8MiB", help: "most bytes of such a batch, unless one block alone is larger"},
	{path: "directio.in_flight", def: "8MiB", help: "most bytes requested from one device at a time"},
	{path: "directio.chunk", def: "1MiB", help: "largest single read or write"},
	{path: "events.zmq.buffer", def: "10000", help: "messages that are kept for repetition, at most 64MiB of them"},
	{path: "peer.connections", def: "4", help: "connections to each peer for blocks"},
	{path: "peer.hedge_quantile", def: "0.95", help: "share of recent fetches; a fetch that takes longer than they did also asks a second holder"},
	{path: "peer.horizon", def: "24h", help: "time for which a removal is remembered, for peers that are away"},
}

// retiredUse is a retired setting that a source gives.
type retiredUse struct {
	path   string
	origin Origin
}

// noteRetired reports whether a retired setting has this path, and notes that o gives it.
func (l *loader) noteRetired(path string, o Origin) bool {
	for _, s := range retired {
		if s.path == path {
			l.old = append(l.old, retiredUse{path, o})
			return true
		}
	}
	return false
}

// retiredWarnings says once of each retired setting where it was given.
func (l *loader) retiredWarnings() []string {
	var lines []string
	for _, s := range retired {
		var from []string
		for _, use := range l.old {
			if use.path == s.path {
				from = append(from, use.origin.String())
			}
		}
		if len(from) > 0 {
			lines = append(lines, fmt.Sprintf("%s: %s is a constant now (%s); the setting is ignored: remove it", strings.Join(from, ", "), s.path, s.def))
		}
	}
	return lines
}
