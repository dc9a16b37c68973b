package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestEndpoints shows which places sockets can be bound to.
func TestEndpoints(t *testing.T) {
	for _, good := range []string{
		"tcp://127.0.0.1:5557", "tcp://127.0.0.1:0", "tcp://[::1]:5557", "tcp://localhost:65535", "tcp://*:5557", "tcp://0.0.0.0:5557",
		"tcp://gpu-7.example:5557", "ipc:///run/kvfs/events.sock", "ipc:///a", "ipc:///" + strings.Repeat("a", 106),
	} {
		if err := checkEndpoint(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"5557": "is not tcp://host:port or ipc:///path", "127.0.0.1:5557": "is not tcp://host:port", "udp://127.0.0.1:5557": "is not tcp://host:port",
		"TCP://127.0.0.1:5557": "is not tcp://host:port", "inproc://x": "is not tcp://host:port", "tcp://": "is not tcp://host:port",
		"tcp://127.0.0.1": "is not tcp://host:port", "tcp://::1:5557": "is not tcp://host:port", "tcp://127.0.0.1:5557/x": `has the port "5557/x"`,
		"tcp://127.0.0.1:65536": `has the port "65536": want 0 to 65535`, "tcp://127.0.0.1:-1": `has the port "-1"`, "tcp://127.0.0.1:*": `has the port "*"`,
		"tcp://127.0.0.1:": `has the port ""`, "tcp://:5557": "has no host", "tcp://a b:5557": `has the host "a b"`, "tcp://127.0.0.300:1": "is not an IP address",
		"ipc://": "does not name a socket", "ipc://run/x": "does not name a socket", "ipc:///": "does not name a socket", "ipc://@x": "does not name a socket",
		"ipc:///run/": "does not name a socket", "ipc:///run/../x": "does not name a socket", "ipc:///" + strings.Repeat("a", 107): "at most 107 bytes",
		"ipc:///a\x00b": "does not name a socket",
	} {
		if err := checkEndpoint(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", bad, err, want)
		}
	}
}

// TestTemplates shows what a template may hold.
func TestTemplates(t *testing.T) {
	for _, good := range []string{
		"{hash}", "{group}/{hash}", "{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin", "m r{rank}/{hash}", "{hash:0:3}{hash}", "{hash:0:255}/{hash}", "{hash::2}/{hash:2:}/{hash}", "a/.b/{hash}",
	} {
		if err := checkTemplate(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"{group}": `"{group}": has no {hash}`, "{hash:0:3}": "has only parts of the hash", "{hash": "the { at byte 0 is not closed",
		"/{hash}": "is not a path below the mount", "{group}//{hash}": "is not a path below the mount", "../{hash}": "is not a path", "{hash}/": "is not a path",
		"./{hash}": "is not a path", "a\x00/{hash}": "is not a path",
		"{hash}" + strings.Repeat("/a", block.MaxPath/2): "has 4102 bytes, a path has at most 4096",
	} {
		if err := checkTemplate(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", bad, err, want)
		}
	}
}

// TestRejectEvents shows every way in which the settings of the sockets are refused, with
// where they stand.
func TestRejectEvents(t *testing.T) {
	const open = `"bind": "tcp://0.0.0.0:5557", "replay": "tcp://gpu-7:5558"`
	for _, tc := range []struct {
		text string // JSON of events.zmq, without its braces
		kind error
		want []string
	}{
		{`"bind": "5557"`, scalar.ErrInvalid, []string{`config-json 1:29: events.zmq.bind: "5557" is not tcp://host:port or ipc:///path`}},
		{`"port": 5557`, scalar.ErrUnknown, []string{`config-json 1:21: unknown key "events.zmq.port"; known here: bind, connect, replay, replay_bare, topic`}},
		{`"replay": "tcp://127.0.0.1:5558"`, scalar.ErrInvalid, []string{`events.zmq.replay: it needs events.zmq.bind or events.zmq.connect, without which nothing is published`}},
		{`"bind": "x", "replay": "tcp://127.0.0.1:5558"`, scalar.ErrInvalid, []string{`events.zmq.bind: "x" is not`}},
		{`"bind": "tcp://127.0.0.1:5557", "replay": "tcp://127.0.0.1:5557"`, scalar.ErrInvalid, []string{`events.zmq.replay: replay "tcp://127.0.0.1:5557" (config-json 1:63) must differ from bind "tcp://127.0.0.1:5557" (config-json 1:29)`}},
		{`"bind": "tcp://LOCALHOST:5557", "replay": "tcp://localhost:05557"`, scalar.ErrInvalid, []string{`must differ from bind`}},
		{open, scalar.ErrInvalid, []string{
			`events.zmq.bind: "tcp://0.0.0.0:5557" is not a loopback address, and ZeroMQ has no keys here: anyone that reaches it sees the names of the blocks; events.zmq.insecure: true (or insecure: true) allows it`,
			`events.zmq.replay: "tcp://gpu-7:5558" is not a loopback address`}},
		{`"bind": "tcp://127.0.0.1:1", "replay": "tcp://10.0.0.1:1"`, scalar.ErrInvalid, []string{`events.zmq.replay: "tcp://10.0.0.1:1" is not a loopback address`}},
		{`"connect": ["tcp://a:1", "x"]`, scalar.ErrInvalid, []string{`events.zmq.connect[1]: "x" is not tcp://host:port or ipc:///path`}},
		{`"connect": ["tcp://*:1", "tcp://a:0", "tcp://[::]:1", "tcp://0.0.0.0:1"]`, scalar.ErrInvalid, []string{
			`events.zmq.connect[0]: "tcp://*:1" is not a place to connect to: want a host and a port from 1 to 65535, or ipc:///path`,
			`events.zmq.connect[1]: "tcp://a:0" is not a place`, `events.zmq.connect[2]: "tcp://[::]:1" is not a place`, `events.zmq.connect[3]: "tcp://0.0.0.0:1" is not a place`}},
		{`"connect": ["tcp://a:1", "tcp://A:01"]`, scalar.ErrInvalid, []string{`events.zmq.connect[1]: "tcp://A:01" is there twice`}},
		{`"bind": "tcp://127.0.0.1:1", "replay": "ipc:///run/x", "connect": ["tcp://127.0.0.1:1", "ipc:///run/x"]`, scalar.ErrInvalid, []string{
			`events.zmq.connect[0]: "tcp://127.0.0.1:1" is a socket of kvfs itself`, `events.zmq.connect[1]: "ipc:///run/x" is a socket of kvfs itself`}},
		{`"connect": [` + strings.TrimSuffix(strings.Repeat(`"tcp://a:1", `, 65), ", ") + `]`, scalar.ErrRange, []string{`events.zmq.connect: 65 endpoints: want at most 64`}},
		{`"topic": "` + strings.Repeat("a", 256) + `"`, scalar.ErrRange, []string{`events.zmq.topic: a topic of 256 bytes: want at most 255`}},
		{`"templates": ["{hash}", "{group}", "{x}/{hash}"]`, scalar.ErrInvalid, []string{`events.zmq.templates[1]: "{group}": has no {hash}: all blocks would have one name`, `events.zmq.templates[2]: "{x}/{hash}": "{x}" at byte 0 is none of`}},
	} {
		_, err := Load(Sources{InlineJSON: `{"events": {"zmq": {` + tc.text + `}}}`, MemTotal: testMem})
		if !errors.Is(err, tc.kind) {
			t.Errorf("%s: got %v, want %v", tc.text, err, tc.kind)
		}
		wantErrors(t, err, tc.want...)
	}
	for _, good := range []string{
		`"bind": "tcp://127.0.0.1:5557", "replay": "tcp://127.0.0.1:5558"`, `"bind": "tcp://127.0.0.1:0", "replay": "tcp://127.0.0.1:0"`,
		`"bind": "tcp://[::1]:1"`, `"bind": "tcp://localhost:1"`, `"bind": "ipc:///run/x", "replay": "ipc:///run/y"`, open + `, "insecure": true`,
		`"connect": ["tcp://router:5557", "ipc:///run/x"]`, `"connect": ["tcp://10.0.0.1:5557"], "replay": "tcp://127.0.0.1:1"`,
		`"bind": "tcp://127.0.0.1:1", "connect": ["tcp://127.0.0.1:2"]`, `"connect": []`,
		`"bind": "ipc:///run/x", "replay": "tcp://127.0.0.1:1"`, `"topic": "` + strings.Repeat("a", 255) + `"`, `"templates": []`,
	} {
		mustLoad(t, Sources{InlineJSON: `{"events": {"zmq": {` + good + `}}}`})
	}
	mustLoad(t, Sources{InlineJSON: `{"insecure": true, "events": {"zmq": {` + open + `}}}`})

	_, err := Load(Sources{
		InlineJSON: `{"events": {"zmq": {"replay": "tcp://127.0.0.1:1"}}}`,
		Environ:    []string{"KVFS_EVENTS_ZMQ_BIND=tcp://127.0.0.1:1", "KVFS_EVENTS_ZMQ_TEMPLATES={hash},{group}"},
		Flags:      parseFlags(t, "--events-zmq-block-size=many", "--events-zmq-hash=none"), MemTotal: testMem,
	})
	wantErrors(t, err, `env KVFS_EVENTS_ZMQ_TEMPLATES: events.zmq.templates[1]: "{group}": has no {hash}: all blocks would have one name`,
		`flag --events-zmq-hash: events.zmq.hash: unknown value "none"`, `flag --events-zmq-block-size: events.zmq.block_size: "many" is not an integer`,
		`env KVFS_EVENTS_ZMQ_BIND: events.zmq.bind: replay "tcp://127.0.0.1:1" (config-json 1:31) must differ`)
	if got := mustLoad(t, Sources{}).Events.ZMQ.Templates; !reflect.DeepEqual(got, []string(nil)) {
		t.Errorf("default templates %q", got)
	}
}
