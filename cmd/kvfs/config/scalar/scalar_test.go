package scalar

import (
	"math"
	"strings"
	"testing"
	"time"
)

// FuzzSize shows that sizes and durations survive the way to text and back, and
// that no text makes the parsers panic.
func FuzzSize(f *testing.F) {
	for _, seed := range []string{"0", "4GiB", "1.5TiB", "1KB", "-1B", "1e9GiB", "9223372036854775807B", "8EiB", "0.000001MB", " 5 MiB ", "5s", "1h0m0s", "10m", "100h", ".", "+1B", "1.2.3B"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseSize(text); err == nil {
			if again, err := ParseSize(n.String()); n < 0 || err != nil || again != n {
				t.Errorf("size %q = %d prints %q, which is %d, %v", text, n, n, again, err)
			}
		}
		if d, err := ParseDuration(text); err == nil {
			if again, err := ParseDuration(d.String()); d < 0 || err != nil || again != d {
				t.Errorf("duration %q = %d prints %q, which is %d, %v", text, d, d, again, err)
			}
		}
	})
}

// TestUnits pins the text form of sizes and durations.
func TestUnits(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "0GiB": 0, "512B": 512, "1KiB": 1024, "1KB": 1000, "1.5GiB": 3 * GiB / 2, "2TB": 2e12, "4 MiB": 4 * MiB,
		"9223372036854775807B": math.MaxInt64,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: unmarshals to %d, %v", text, s, err)
		}
	}
	for size, want := range map[Size]string{
		0: "0", 1: "1B", 1000: "1KB", 1024: "1KiB", 1536: "1536B", 64 * MiB: "64MiB", 3 * GiB / 2: "1536MiB", 2e12: "2TB", 5 * TiB: "5TiB",
	} {
		if got, _ := size.MarshalText(); string(got) != want {
			t.Errorf("%d prints %q, want %q", size, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", time.Hour: "1h", 10 * time.Minute: "10m", 90 * time.Second: "1m30s", 250 * time.Millisecond: "250ms", 3605 * time.Second: "1h0m5s",
	} {
		got, _ := Duration(d).MarshalText()
		var again Duration
		if err := again.UnmarshalText(got); string(got) != want || err != nil || time.Duration(again) != d {
			t.Errorf("%v prints %q, want %q; reads as %v, %v", d, got, want, again, err)
		}
	}
}

// TestParseSegment pins the forms of a preferred segment (E2).
func TestParseSegment(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "  ": "", "gpu-7": "gpu-7", " gpu-7\n": "gpu-7", "10.0.0.2": "10.0.0.2", "gpu-7:7946": "gpu-7:7946", "10.0.0.2:080": "10.0.0.2:80",
		"[fd00::2]:7946": "[fd00::2]:7946", "[fe80::1%eth0]:1": "[fe80::1%eth0]:1",
	} {
		if got, err := ParseSegment(text); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"::1", "fd00::2:7946", "[::1]", ":7946", "a:", "a:0", "a:65536", "a:x", "a:+1", "a b:1", "a b", "1.2.3:4", "[a]:x", strings.Repeat("a", 65)} {
		if got, err := ParseSegment(text); err == nil || got != "" {
			t.Errorf("%q: got %+v, %v; want an error", text, got, err)
		}
	}
}

// TestHostPort pins the forms of an address.
func TestHostPort(t *testing.T) {
	type result struct {
		host string
		port int
	}
	for text, want := range map[string]result{
		"node-1": {"node-1", DefaultPort}, "node-1:80": {"node-1", 80}, "node_1.example.:0": {"node_1.example.", 0},
		"10.0.0.1": {"10.0.0.1", DefaultPort}, "10.0.0.1:65535": {"10.0.0.1", 65535}, "a1.0x:1": {"a1.0x", 1},
		"::1": {"::1", DefaultPort}, "[::1]": {"::1", DefaultPort}, "[::1]:80": {"::1", 80}, "::": {"::", DefaultPort}, "fe80::1%eth0": {"fe80::1%eth0", DefaultPort},
	} {
		host, port, err := HostPort(text)
		if got := (result{host, port}); err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", " ", "a:b:c", "[a]", "]", "[", "[]:1", "-a", "a-:1", ".a", "a..:1x", strings.Repeat("a", 254)} {
		if host, port, err := HostPort(text); err == nil {
			t.Errorf("%q: got %q, %d; want an error", text, host, port)
		}
	}
}
