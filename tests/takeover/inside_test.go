package takeover

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// inside are the flags that name a path, for one path.
func inside(path string) map[string][]string {
	tls := func(of string) []string {
		flags := []string{"--bind", "127.0.0.1:0"}
		for _, key := range []string{"ca", "cert", "key"} {
			file := "/nowhere/" + key
			if key == of {
				file = path
			}
			flags = append(flags, "--tls-"+key, file)
		}
		return flags
	}
	const bucket = "url=s3://bucket/a,endpoint=http://127.0.0.1:1,credentials=file"
	return map[string][]string{
		"disk.dirs[0].path":           {"--disk", "path=" + path + ",size=64MiB"},
		"http_token_file":             {"--http", "127.0.0.1:0", "--http-token-file", path},
		"events.zmq.bind":             {"--events-zmq-bind", "ipc://" + path},
		"events.zmq.connect[0]":       {"--events-zmq-connect", "ipc://" + path},
		"events.zmq.replay":           {"--events-zmq-bind", "tcp://127.0.0.1:0", "--events-zmq-replay", "ipc://" + path},
		"peer.gossip_keys":            {"--bind", "127.0.0.1:0", "--peer-gossip-keys", path},
		"tls.ca":                      tls("ca"),
		"tls.cert":                    tls("cert"),
		"tls.key":                     tls("key"),
		"tiers[0].credentials_file":   {"--object", bucket + ",credentials_file=" + path},
		"tiers[0].tls.ca_file":        {"--object", bucket + ",tls.ca_file=" + path},
		"store.socket":                {"--store-socket", path},
		"the credentials of AWS":      {"--object", bucket, "AWS_SHARED_CREDENTIALS_FILE=" + path},
		"AWS_WEB_IDENTITY_TOKEN_FILE": {"AWS_WEB_IDENTITY_TOKEN_FILE=" + path},
	}
}

// refuses runs kvfs mount with flags, and with those among them that are variables, and wants code 3 and a line about what.
func (s *site) refuses(what string, flags ...string) {
	s.tb.Helper()
	args := []string{"mount", "--memory-size", "128MiB"}
	env := os.Environ()
	for _, flag := range flags {
		if strings.HasPrefix(flag, "-") || !strings.Contains(flag, "=") || strings.HasPrefix(flag, "path=") || strings.HasPrefix(flag, "url=") {
			args = append(args, flag)
		} else {
			env = append(env, flag)
		}
	}
	cmd := exec.Command(harness.Binary(s.tb), append(args, s.dir)...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	timer := time.AfterFunc(harness.Deadline, func() { cmd.Process.Signal(unix.SIGTERM) })
	defer timer.Stop()
	said, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(string(said), what+": ") || !strings.Contains(string(said), "wait for itself") {
		s.tb.Errorf("%s: kvfs mount %q: exit code %d\n%s", what, flags, code, said)
	}
}

// TestPathInside shows that no path of a daemon may lead into a kvfs mount: at a start, where the mount would cover it, and
// at a takeover, for which nobody answers a look-up of it. The check itself asks no mount.
func TestPathInside(t *testing.T) {
	s := newSite(t)
	elsewhere := filepath.Join(s.base, "bound")
	must(t, os.Mkdir(elsewhere, 0o755))
	link := filepath.Join(s.base, "link")
	if err := os.Symlink("mnt/../mnt/absent", link); err != nil { // the target need not exist
		t.Fatal(err)
	}
	paths := map[string]string{"plain": filepath.Join(s.dir, "sub/x"), "a link": link, "below a link": link + "/x"}
	for _, path := range paths {
		s.refuses("disk.dirs[0].path", inside(path)["disk.dirs[0].path"]...)
		s.refuses("http_token_file", inside(path)["http_token_file"]...)
	}
	first := s.mount()
	s.write(0, 10)
	must(t, unix.Mount(filepath.Join(s.dir, "g"), elsewhere, "", unix.MS_BIND, ""))
	defer unix.Unmount(elsewhere, unix.MNT_DETACH)
	paths["a bind mount"] = filepath.Join(elsewhere, "x")
	harness.Freeze(first.tb, first.pid) // a look-up in the mount would wait
	for way, path := range paths {
		for what, flags := range inside(path) {
			if way == "plain" || strings.HasPrefix(what, "disk") {
				s.refuses(what, append([]string{"--takeover", "--memory-dir", s.memory}, flags...)...)
			}
		}
	}
	for _, path := range paths {
		if _, said, code := harness.Kvfs(t, "debug", "bundle", "-o", path, s.dir); code != 3 || !strings.Contains(said, "name a file of another file system") {
			t.Errorf("a bundle into the mount: exit code %d\n%s", code, said)
		}
	}
	unix.Kill(first.pid, unix.SIGCONT)
	s.answeredBy(first)
	unix.Unmount(elsewhere, unix.MNT_DETACH)
	s.takeover()
	s.check(0, 10)
}

// TestOutputInside shows that a takeover works whose log is a file of the mount, also the next one, and that there is a warning.
func TestOutputInside(t *testing.T) {
	s := newSite(t)
	s.mount()
	s.write(0, 10)
	for i := range 3 {
		name := filepath.Join(s.dir, fmt.Sprintf("log%d.tmp", i))
		s.logs = name
		d := s.takeover()
		s.check(0, 10)
		s.answeredBy(d)
		if i == 0 {
			harness.Poll(t, "a warning", func() bool {
				text, _ := os.ReadFile(name)
				return strings.Contains(string(text), "a file of a kvfs mount is open for output")
			})
		}
	}
	s.logs = ""
	s.takeover()
	s.check(0, 10)
}

// TestNewBlocked shows that the old daemon takes the mount back in seconds if the new one does not get on.
func TestNewBlocked(t *testing.T) {
	s := newSite(t)
	s.mount()
	s.write(0, 10)
	began := time.Now()
	old, heir := halfway(s)
	old.says("taking the mount back")
	s.check(0, 10)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("clients waited for %v", took)
	}
	heir.end()
	if heir.code != -1 {
		t.Errorf("the new one ended with code %d", heir.code)
	}
	s.answeredBy(old)
	s.daemons = []*daemon{old}
}
