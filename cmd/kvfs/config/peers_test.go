package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// secure are the settings that an address needs that others reach, as JSON.
const secure = `"tls": {"ca": "ca.pem", "cert": "a.pem", "key": "a-key.pem"}, "peer": {"gossip_keys": "keys"}`

// TestNeedBind shows that nothing of peers is accepted without bind, all of it is with
// it, and what an engine's environment says about a preferred segment is never in the
// way (E10).
func TestNeedBind(t *testing.T) {
	for _, s := range textSettings() {
		text := sample(t, s)
		needs := slices.Contains([]string{"join", "advertise", "replicas", "preferred_segment"}, s.path) || strings.HasPrefix(s.path, "peer.") || strings.HasPrefix(s.path, "rdma.")
		_, err := Load(Sources{Flags: parseFlags(t, "--"+s.flag(), text), MemTotal: testMem, Hostname: testHost})
		want := "flag --" + s.flag() + ": " + s.path + ": it needs bind, without which there are no peers"
		if needs {
			wantErrors(t, err, want)
		} else if err != nil && strings.Contains(err.Error(), "needs bind") {
			t.Errorf("%s: %v", s.path, err)
		}
		if needs {
			mustLoad(t, Sources{Flags: parseFlags(t, "--insecure=1", "--bind=127.0.0.1", "--"+s.flag(), text)})
		}
	}
	for _, entry := range []string{"KVFS_PREFERRED_SEGMENT=x:1", "MOONCAKE_PREFERRED_SEGMENT=x:1", "MOONCAKE_PREFERRED_SEGMENT=::bad"} {
		if c := mustLoad(t, Sources{Environ: []string{entry}}); !sameValues(c, mustLoad(t, Sources{})) || len(c.origins) != 0 {
			t.Errorf("%s: set %q, origins %v", entry, c.PreferredSegment, c.origins)
		}
	}
	// All of them at once, each where it stands.
	file := writeFile(t, "c.yaml", "join: [a]\npeer:\n  queue: 1GiB\n  timeout: 5s\nreplicas: 1\n")
	_, err := Load(Sources{File: file, MemTotal: testMem})
	wantErrors(t, err, file+":1: join: it needs bind", file+":5: replicas: it needs bind", file+":3: peer.queue: it needs bind")
}

// TestRejectPeers shows how settings of peers are refused. TestHostPort of package scalar has the forms of addresses.
func TestRejectPeers(t *testing.T) {
	for _, tc := range []struct {
		text string // JSON without its braces; bind is loopback unless it is given
		kind error
		want []string
	}{
		{`"bind": "[::1"`, scalar.ErrInvalid, []string{`bind: "[::1" is not host or host:port`}},
		{`"bind": ":7946"`, scalar.ErrInvalid, []string{`bind: ":7946" has no host: for all addresses of the machine write 0.0.0.0`}},
		{`"bind": "7946"`, scalar.ErrInvalid, []string{`bind: "7946" has the host "7946", which is not an IP address`}},
		{`"bind": "127.0.0.1:65536"`, scalar.ErrRange, []string{`has the port "65536"`}},
		{`"join": ["a:1", "b:x"]`, scalar.ErrRange, []string{`join[1]: "b:x" has the port "x"`}},
		{`"join": ["a:0"]`, scalar.ErrRange, []string{`join[0]: "a:0" has the port 0: want 1 to 65535`}},
		{`"join": ["0.0.0.0"]`, scalar.ErrInvalid, []string{`join[0]: "0.0.0.0" cannot be reached: it stands for all addresses`}},
		{`"advertise": "[::]:7946"`, scalar.ErrInvalid, []string{`advertise: "[::]:7946" cannot be reached: it stands for all addresses`}},
		{`"node_name": "a b"`, scalar.ErrInvalid, []string{`node_name: "a b" is not a name: want 1 to 64 letters`}},
		{`"node_name": "` + strings.Repeat("a", 65) + `"`, scalar.ErrInvalid, []string{`is not a name`}},
		{`"zone": "ä"`, scalar.ErrInvalid, []string{`zone: "ä" is not a name`}},
		{`"replicas": 17`, scalar.ErrRange, []string{`replicas: 17 is out of range: want 0 to 16`}},
		{`"peer": {"timeout": "0s"}`, scalar.ErrRange, []string{`peer.timeout: 0s is out of range: want above 0`}},
		{`"peer": {"control": "a"}`, scalar.ErrInvalid, []string{`peer.control: "a" is not host:port`}},
		{`"peer": {"bulk": "a:x"}`, scalar.ErrRange, []string{`peer.bulk: "a:x" has the port "x"`}},
		{`"peer": {"congestion": "b-b-r"}`, scalar.ErrInvalid, []string{`peer.congestion: "b-b-r" is not a name: want 1 to 15`}},
		{`"peer": {"require": ["get", "got"]}`, scalar.ErrEnum, []string{`peer.require[1]: unknown value "got"; one of get, store, bury, list, resume, memory, rdma, digest`}},
		{`"tls": {"cert": "c"}`, scalar.ErrInvalid, []string{
			`tls.ca: it is missing: tls.cert is given (config-json 1:`, `tls.key: it is missing: tls.cert is given (config-json 1:`}},
		{`"tls": {"ca": "c", "key": "k"}`, scalar.ErrInvalid, []string{`tls.cert: it is missing: tls.ca is given`}},
	} {
		if !strings.Contains(tc.text, `"bind"`) {
			tc.text = `"bind": "127.0.0.1", ` + tc.text
		}
		_, err := Load(Sources{InlineJSON: "{" + tc.text + "}", MemTotal: testMem, Hostname: testHost})
		if !errors.Is(err, tc.kind) {
			t.Errorf("%s: got %v, want kind %v", tc.text, err, tc.kind)
		}
		wantErrors(t, err, tc.want...)
	}
}

// TestSecurity shows which addresses need certificates and keys, that one refusal says
// what is missing and how to get it, and that insecure does without.
func TestSecurity(t *testing.T) {
	for _, bind := range []string{"127.0.0.1", "127.8.9.1:1", "localhost", "LocalHost.:7946", "::1", "[::1]", "[::1]:7946", "::ffff:127.0.0.1"} {
		mustLoad(t, Sources{InlineJSON: `{"bind": "` + bind + `"}`})
		// Not so if one of the other channels is open to others.
		_, err := Load(Sources{InlineJSON: `{"bind": "` + bind + `", "peer": {"bulk": ":7948"}}`, MemTotal: testMem})
		wantErrors(t, err, `peer.bulk: ":7948" is not a loopback address and needs tls.ca, tls.cert and tls.key (kvfs certs init makes them), and peer.gossip_keys (kvfs keys create makes them); insecure: true does without`)
	}
	for _, bind := range []string{"0.0.0.0", "0.0.0.0:7946", "::", "[::]:7946", "10.0.0.1", "node-1", "localhost.example", "fe80::1%eth0", "128.0.0.1:1"} {
		json := `{"bind": "` + bind + `"`
		_, err := Load(Sources{InlineJSON: json + `}`, MemTotal: testMem})
		wantErrors(t, err, `config-json 1:10: bind: "`+bind+`" is not a loopback address and needs tls.ca`)
		_, err = Load(Sources{InlineJSON: json + `, "peer": {"gossip_keys": "k"}}`, MemTotal: testMem})
		wantErrors(t, err, `needs tls.ca, tls.cert and tls.key (kvfs certs init makes them); insecure: true does without`)
		_, err = Load(Sources{InlineJSON: json + `, "tls": {"ca": "a", "cert": "b", "key": "c"}}`, MemTotal: testMem})
		wantErrors(t, err, `needs peer.gossip_keys (kvfs keys create makes them); insecure: true does without`)
		mustLoad(t, Sources{InlineJSON: json + `, ` + secure + `}`})
		mustLoad(t, Sources{InlineJSON: json + `, "insecure": true}`})
	}
	if on := mustLoad(t, Sources{InlineJSON: `{` + secure + `, "bind": "::1"}`}).TLS.On(); !on {
		t.Error("TLS is off")
	}
}

// TestNodeName shows where the default comes from, and the documented alias (B10).
func TestNodeName(t *testing.T) {
	const alias = "MOONCAKE_REQUESTER_LOCAL_HOSTNAME=10.0.0.7"
	for _, tc := range []struct {
		env  []string
		want string
	}{
		{nil, ""},
		{[]string{"KVFS_BIND=::1"}, testHost},
		{[]string{"KVFS_BIND=::1", alias}, "10.0.0.7"},
		{[]string{alias}, "10.0.0.7"},
		{[]string{alias + ":50053"}, "10.0.0.7"},
		{[]string{"KVFS_BIND=::1", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME=[fd00::1]:50053"}, testHost},
		{[]string{alias, "KVFS_NODE_NAME=x"}, "x"},
	} {
		if c := mustLoad(t, Sources{Environ: tc.env}); c.NodeName != tc.want {
			t.Errorf("%v: got %q, want %q", tc.env, c.NodeName, tc.want)
		}
	}
	_, err := Load(Sources{Environ: []string{"KVFS_BIND=::1"}, MemTotal: testMem, Hostname: "my host"})
	if err == nil || !strings.Contains(err.Error(), `node_name: the host name is no default, set it: "my host" is not a name`) || !errors.Is(err, scalar.ErrInvalid) {
		t.Errorf("bad host name: got %v", err)
	}
	if c, err := Load(Sources{Environ: []string{"KVFS_BIND=::1"}, MemTotal: testMem}); err != nil && c != nil {
		t.Errorf("of this machine: %v", err)
	}
}

// TestPeerQueue shows what an automatic queue comes to.
func TestPeerQueue(t *testing.T) {
	for memory, want := range map[string]scalar.Size{"64MiB": 16 * scalar.MiB, "100GiB": scalar.GiB} {
		if c := mustLoad(t, Sources{InlineJSON: `{"bind": "::1", "memory": {"size": "` + memory + `"}}`}); c.Peer.Queue != want {
			t.Errorf("memory.size %s: got %v, want %v", memory, c.Peer.Queue, want)
		}
	}
	c := mustLoad(t, Sources{InlineJSON: `{"bind": "::1", "peer": {"queue": "5GiB"}}`})
	if c.Peer.Queue != 5*scalar.GiB || !reflect.DeepEqual(c.Join, []string(nil)) {
		t.Errorf("got %v, join %v", c.Peer.Queue, c.Join)
	}
}
