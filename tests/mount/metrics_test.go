package mount

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// httpAddress returns a free address. It is not 127.0.0.1, where another process may take the port before its use.
func httpAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.97.0.1:0")
	must(t, "listen", err)
	defer l.Close()
	return l.Addr().String()
}

// sample is a line with a value in the text form of Prometheus.
var sample = regexp.MustCompile(`^(\w+(?:\{.*\})?) (\S+)$`)

// parseMetrics returns the values of a text, by name with labels. It fails the test for a line without sense.
func parseMetrics(t *testing.T, text string) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("metrics have the line %q", line)
		}
		v, err := strconv.ParseFloat(m[2], 64)
		must(t, line, err)
		values[m[1]] = v
	}
	return values
}

// metrics returns what .kvfs/metrics says now.
func metrics(t *testing.T, d *harness.Daemon) map[string]float64 {
	t.Helper()
	text, err := os.ReadFile(d.Path(".kvfs", "metrics"))
	must(t, "read .kvfs/metrics", err)
	return parseMetrics(t, string(text))
}

// get returns the code and the body of an answer.
func get(t *testing.T, client *http.Client, address, path string) (int, string) {
	t.Helper()
	reply, err := client.Get("http://" + address + path)
	must(t, "GET "+path, err)
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	must(t, "GET "+path, err)
	return reply.StatusCode, string(body)
}

// TestMetrics shows that the metrics move with what clients do, with passthrough and without, that requests of the
// kernel are counted as in the status, and that docs/metrics.md has all names.
func TestMetrics(t *testing.T) {
	for _, passthrough := range []string{"auto", "off"} {
		t.Run(passthrough, func(t *testing.T) {
			address := httpAddress(t)
			d := diskMount(t, harness.Options{Flags: []string{"--http", address, "--memory-passthrough", passthrough}})
			const n = 20
			blocks := numbered(d.Path("g"), n, 64<<10)
			before := metrics(t, d)
			// moved waits until a value has risen by at least want.
			moved := func(name string, want float64) {
				t.Helper()
				harness.Poll(t, fmt.Sprintf("%s rises by %v from %v", name, want, before[name]), func() bool {
					return metrics(t, d)[name]-before[name] >= want
				})
			}
			writeAll(t, blocks)
			moved(`kvfs_memory_stored_blocks_total`, n)
			moved(`kvfs_memory_stored_bytes_total`, n*64<<10)
			moved(`kvfs_tier_blocks{tier="memory"}`, n)
			wantBlocks(t, blocks)
			moved(`kvfs_tier_hits_total{tier="memory"}`, n)
			moved(`kvfs_tier_read_bytes_total{tier="memory"}`, n*64<<10)
			if _, err := os.Stat(d.Path("g", "absent")); !os.IsNotExist(err) {
				t.Errorf("an absent name: %v", err)
			}
			moved(`kvfs_lookup_misses_total`, 1)
			waitOnDisk(t, paths(blocks)...)
			evictMemory(t, d)
			moved(`kvfs_tier_cascades_total{tier="disk"}`, n)
			moved(`kvfs_tier_cascaded_bytes_total{tier="disk"}`, n*64<<10)
			moved(`kvfs_tier_store_duration_seconds_count{tier="disk"}`, 1)
			moved(`kvfs_tier_evictions_total{rule="request",tier="memory"}`, n)
			wantBlocks(t, blocks)
			moved(`kvfs_tier_hits_total{tier="disk"}`, n)
			moved(`kvfs_tier_load_duration_seconds_count{tier="disk"}`, 1)
			moved(`kvfs_fuse_request_duration_seconds_count{op="OPEN"}`, 2*n)
			for _, op := range []string{"CREATE", "MKDIR", "READ", "WRITE"} { // the last two are none with passthrough, which may be impossible
				harness.Poll(t, op+" is timed as often as it is counted", func() bool {
					ops, _ := field(d.Status().Raw, []string{"mount", "ops"}).(map[string]any)
					counted, _ := ops[op].(float64)
					now := metrics(t, d)
					timed := now[`kvfs_fuse_request_duration_seconds_count{op="`+op+`"}`]
					// Each of the two readings may be a READ itself.
					return timed == counted || op == "READ" && timed > n && counted > n
				})
			}
			now := metrics(t, d)
			slow := now[`kvfs_daemon_fallback_active{fallback="no_passthrough"}`] == 1
			if want := d.Status().Mount.ReadPath != "passthrough"; slow != want {
				t.Errorf("no passthrough: %v, want %v", slow, want)
			}
			if now["kvfs_daemon_ready"] != 1 || now[`kvfs_daemon_mounts{state="serving"}`] != 1 || now[`kvfs_tier_state{state="online",tier="disk"}`] != 1 {
				t.Error("a mount that works is not ready")
			}
			code, text := get(t, &http.Client{Timeout: harness.Deadline}, address, "/metrics")
			if far := parseMetrics(t, text); code != http.StatusOK || len(far) < len(before) {
				t.Errorf("/metrics: %d, with %d values, .kvfs/metrics has %d", code, len(far), len(before))
			}
			page, err := os.ReadFile("../../docs/metrics.md")
			must(t, "docs/metrics.md", err)
			for _, m := range regexp.MustCompile(`(?m)^# TYPE (\w+) (\w+)$`).FindAllStringSubmatch(text, -1) {
				if !strings.Contains(string(page), "\n| `"+m[1]+"` | "+m[2]+" |") {
					t.Errorf("docs/metrics.md lacks the %s %s", m[2], m[1])
				}
			}
		})
	}
}

// TestReadyz shows what /readyz says of a mount whose SSD tier has gone, and of a node that finds no other, and that
// /healthz says that the process is well.
func TestReadyz(t *testing.T) {
	client := &http.Client{Timeout: harness.Deadline}
	wants := func(t *testing.T, d *harness.Daemon, address, line string) {
		t.Helper()
		harness.Poll(t, "/readyz has the line "+line, func() bool {
			code, body := get(t, client, address, "/readyz")
			return code == http.StatusServiceUnavailable && strings.HasPrefix(body, line)
		})
		if code, body := get(t, client, address, "/healthz"); code != http.StatusOK || body != "ok\n" {
			t.Errorf("/healthz: %d, %q", code, body)
		}
		harness.Poll(t, "the metric follows", func() bool { return metrics(t, d)["kvfs_daemon_ready"] == 0 })
	}
	t.Run("tier offline", func(t *testing.T) {
		address := httpAddress(t)
		d := diskMount(t, harness.Options{Flags: []string{"--http", address}})
		if code, body := get(t, client, address, "/readyz"); code != http.StatusOK || body != "ready\n" {
			t.Errorf("at first: %d, %q", code, body)
		}
		put(t, d.Path("first"), pattern("first", 64<<10)) // so that there is a slab
		waitOnDisk(t, d.Path("first"))
		must(t, "remove the directory of the SSD tier", os.RemoveAll(d.DiskDir))
		put(t, d.Path("block"), pattern("block", 64<<10)) // the next sync finds out
		wants(t, d, address, "tier disk: offline: ")
	})
	t.Run("alone", func(t *testing.T) {
		harness.KvfsOnly(t, "peers")
		address, nobody := httpAddress(t), httpAddress(t)
		d := harness.Mount(t, harness.Options{Flags: []string{"--http", address, "--bind", "127.97.0.1:0", "--node-name", "a", "--join", nobody}})
		wants(t, d, address, "cluster: not joined")
	})
}
