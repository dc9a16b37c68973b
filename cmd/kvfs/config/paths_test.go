package config

import (
	"slices"
	"strings"
	"testing"
)

// TestPaths shows that Paths has each path of a configuration, and nothing else.
func TestPaths(t *testing.T) {
	c, err := Load(Sources{MemTotal: 1 << 30, Hostname: "h", TierTypes: testTypes{}, InlineJSON: `{
		"memory": {"dir": "/m"}, "http": "127.0.0.1:1", "http_token_file": "token", "store": {"socket": "/s"},
		"disk": {"dirs": [{"path": "/d0", "size": "1GiB"}, {"path": "d1", "size": "1GiB"}]},
		"bind": "127.0.0.1:7946", "tls": {"ca": "/ca", "cert": "/cert", "key": "/key"}, "peer": {"gossip_keys": "/keys"},
		"events": {"zmq": {"bind": "ipc:///b", "connect": ["tcp://h:1", "ipc:///c"], "replay": "tcp://127.0.0.1:2"}}
	}`})
	must(t, err)
	var got []string
	for _, p := range c.Paths() {
		got = append(got, p.Setting+"="+p.File())
	}
	want := strings.Fields("memory.dir=/m store.socket=/s disk.dirs[0].path=/d0 disk.dirs[1].path=d1 events.zmq.bind=/b events.zmq.connect[1]=/c " +
		"peer.gossip_keys=/keys tls.ca=/ca tls.cert=/cert tls.key=/key http_token_file=token")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestPathsMarked shows that a setting whose help speaks of a file or a directory holds a path.
func TestPathsMarked(t *testing.T) {
	no := map[string]bool{"disk.dirs": true, "mount.plain_patterns": true, "mount.temp_patterns": true, "mount.temp_expiry": true}
	var walk func(settings []*setting)
	walk = func(settings []*setting) {
		for _, s := range settings {
			walk(s.settings)
			first, _, _ := strings.Cut(strings.ToLower(s.help), ".")
			about := strings.HasPrefix(first, "file") || strings.HasPrefix(first, "directory") || strings.Contains(first, "path of the unix socket") ||
				strings.HasPrefix(s.example, "/") || s.check == "endpoint"
			if s.shape == leaf && about != s.file && !no[s.path] {
				t.Errorf("%s: holds a path: %v, by its help: %v", s.path, s.file, about)
			}
		}
	}
	walk(schema().settings)
}
