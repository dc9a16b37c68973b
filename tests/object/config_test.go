package object

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// wantNoSecret fails the test if a text has the access key or the secret.
func wantNoSecret(t testing.TB, where, text string) {
	t.Helper()
	for _, secret := range []string{s3test.SecretKey, s3test.AccessKey} {
		if strings.Contains(text, secret) {
			t.Errorf("%s shows %s:\n%s", where, secret, text)
		}
	}
}

// metadataService starts a service that gives the access key to those who ask, and returns its address.
func metadataService(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"AccessKeyId": %q, "SecretAccessKey": %q, "Token": "", "Expiration": %q}`,
			s3test.AccessKey, s3test.SecretKey, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestSecrets shows that the key and the secret are in no output, however they were given, and also if they are refused
// (G6).
func TestSecrets(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	file := flag(s.URL, ",credentials=file,credentials_file="+s.Credentials)
	imds, service := flag(s.URL, ",credentials=imds"), "AWS_CONTAINER_CREDENTIALS_FULL_URI="
	for _, c := range []struct {
		name string
		opts harness.Options
		want string // in the log
	}{
		{"environment", harness.Options{Flags: flag(s.URL, ""), Env: keys}, "mounted"},
		{"file", harness.Options{Flags: file}, "mounted"},
		{"metadata service", harness.Options{Flags: imds, Env: []string{service + metadataService(t)}}, "mounted"},
		{"no metadata service", harness.Options{Flags: imds, Env: []string{service + "http://127.0.0.1:1/"}}, "object store failed"},
		{"region", harness.Options{Flags: flag(s.URL, ",region=eu-west-1"), Env: keys}, "object store failed"},
		{"refused", harness.Options{Flags: flag(s.URL, ""), Env: []string{"AWS_ACCESS_KEY_ID=someone", keys[1]}}, "object store failed"},
		{"wrong secret", harness.Options{Flags: flag(s.URL, ""), Env: []string{keys[0], "AWS_SECRET_ACCESS_KEY=wrong"}}, "object store failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			harness.KvfsOnly(t, "a tier on object storage")
			if s.Ceph() && c.name == "region" {
				t.Skip("any region is right for Ceph")
			}
			c.opts.Flags = append(slices.Clone(c.opts.Flags), "--log-level", "debug")
			d := harness.Mount(t, c.opts)
			storeAll(t, d, numbered("g", 2, 10_000))
			harness.Poll(t, "the log says "+c.want, func() bool { return strings.Contains(d.Log(), c.want) })
			if c.want == "mounted" {
				waitStored(t, d, numbered("g", 2, 10_000))
			} else if got := d.Status().Secondary(t, "object"); got.State == "online" {
				t.Errorf("the tier is online, although the store refuses the key")
			}
			stdout, stderr, _ := harness.Kvfs(t, "status", "--json", d.Dir)
			status, err := os.ReadFile(d.Path(".kvfs/status"))
			must(t, "read the status", err)
			cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.Pid))
			must(t, "read the command line", err)
			wantNoSecret(t, "kvfs status", stdout+stderr)
			wantNoSecret(t, ".kvfs/status", string(status))
			wantNoSecret(t, "the command line", string(cmdline))
			d.Stop()
			wantNoSecret(t, "the log", d.Log())
		})
	}
	for _, command := range []string{"print", "check"} {
		stdout, stderr, code := harness.Kvfs(t, append([]string{"config", command}, file...)...)
		if code != 0 {
			t.Errorf("kvfs config %s: exit code %d\n%s", command, code, stderr)
		}
		wantNoSecret(t, "kvfs config "+command, stdout+stderr)
	}
}

// TestBadStore shows that a bucket that is not there and a store that takes no writes cost no start: the daemon serves from
// memory, the log has one line, and the status says what is wrong (G6).
func TestBadStore(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{})
	bs := numbered("g", 3, 10_000)
	storeAll(t, d, bs)
	waitStored(t, d, bs)
	d.Stop()

	none := harness.Mount(t, harness.Options{Flags: []string{"--object", "url=s3://no-such-bucket/x,refresh=1s,endpoint=" + s.URL}, Env: keys})
	harness.Poll(t, "the log names the bucket", func() bool { return strings.Contains(none.Log(), "no-such-bucket") })
	storeAll(t, none, bs)
	wantBlocks(t, none, bs)
	if got := none.Status().Secondary(t, "object"); got.State == "online" || got.Reason == "" {
		t.Errorf("no such bucket: state %q, reason %q", got.State, got.Reason)
	}

	s.Kill()
	s.Run(true)
	d = mount(t, s.URL, "", harness.Options{})
	waitFound(t, d, bs)
	wantBlocks(t, d, bs)
	more := numbered("more", 3, 10_000)
	storeAll(t, d, more)
	wantBlocks(t, d, more)
	harness.Poll(t, "the log says that the tier is read-only", func() bool { return strings.Contains(d.Log(), "the tier is read-only") })
	if n := strings.Count(d.Log(), "the tier is read-only"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, d.Log())
	}
	if got := d.Status().Secondary(t, "object"); got.State != "degraded" || got.Reason == "" {
		t.Errorf("a read-only store: state %q, reason %q", got.State, got.Reason)
	}
}
