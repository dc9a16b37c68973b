package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/docs"
)

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// runCLI runs a command line as main would.
func runCLI(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

// cleanEnv removes our variables for the time of a test.
func cleanEnv(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "KVFS_") {
			t.Setenv(name, "") // empty means not set
		}
	}
}

// writeTemp writes a file and returns its path.
func writeTemp(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestExitCodes pins the exit code and the one line of each kind of failure
// (A36, B2, D10).
func TestExitCodes(t *testing.T) {
	cleanEnv(t)
	good := writeTemp(t, "good.yaml", "memory: {size: 1GiB}\n")
	plain := t.TempDir()
	for _, tc := range []struct {
		args   string
		code   int
		stderr string // all of it, "" for none; a trailing ... leaves the rest open
	}{
		{"", exit.OK, ""},
		{"version", exit.OK, ""},
		{"--help", exit.OK, ""},
		{"mount --help", exit.OK, ""},
		{"config check", exit.OK, ""},
		{"config check " + good, exit.OK, ""},
		{"config check --config " + good, exit.OK, ""},
		{"config print --memory-policy=arc", exit.OK, ""},
		{"config check --mode=standalone-store", exit.OK, ""},
		{"config check --mode=standalone-store --memory-policy=arc", exit.OK,
			"kvfs: warning: mode standalone-store (flag --mode): only kvfs serve heeds memory.policy\n"},
		{"config example", exit.OK, ""},

		{"confg", exit.Usage, "kvfs: unknown command \"confg\"; did you mean \"config\"? (see kvfs --help)\n"},
		{"nonsense", exit.Usage, "kvfs: unknown command \"nonsense\" (see kvfs --help)\n"},
		{"config", exit.Usage, "kvfs: a command is missing: one of check, example, print (see kvfs config --help)\n"},
		{"config chek", exit.Usage, "kvfs: unknown command \"chek\"; did you mean \"check\"? (see kvfs config --help)\n"},
		{"--nope", exit.Usage, "kvfs: unknown flag: --nope (see kvfs --help)\n"},
		{"config check --memory-sise 1GiB", exit.Usage, "kvfs: unknown flag: --memory-sise; did you mean --memory-size? (see kvfs config check --help)\n"},
		{"config check --size 1GiB", exit.Usage, "kvfs: unknown flag: --size; did you mean --memory-size? (see kvfs config check --help)\n"},
		{"config check --peer-bind a", exit.Usage, "kvfs: unknown flag: --peer-bind; did you mean --bind? (see kvfs config check --help)\n"},
		{"config check --disk-path a", exit.Usage, "kvfs: unknown flag: --disk-path; did you mean --disk? (see kvfs config check --help)\n"},
		{"config check -z", exit.Usage, "kvfs: unknown shorthand flag: 'z' in -z (see kvfs config check --help)\n"},
		{"config check --memory-size", exit.Usage, "kvfs: flag needs an argument: --memory-size (see kvfs config check --help)\n"},
		{"config check a b", exit.Usage, "kvfs: accepts at most 1 arg(s), received 2 (see kvfs config check --help)\n"},
		{"config check --config a b", exit.Usage, "kvfs: FILE and --config exclude each other (see kvfs config check --help)\n"},
		{"version now", exit.Usage, "kvfs: unknown command \"now\" for \"kvfs version\" (see kvfs version --help)\n"},
		{"mount", exit.Usage, "kvfs: ..."},
		{"umount", exit.Usage, "kvfs: accepts 1 arg(s), received 0 (see kvfs umount --help)\n"},
		{"umount --timeout soon x", exit.Usage, "kvfs: ..."},
		{"fsck --repiar x", exit.Usage, "kvfs: unknown flag: --repiar; did you mean --repair? (see kvfs fsck --help)\n"},
		{"evict " + plain, exit.Usage, "kvfs: --tier is missing: memory or disk (see kvfs evict --help)\n"},
		{"evict --tier memory", exit.Usage, "kvfs: no blocks are named: give PATH, or --all (see kvfs evict --help)\n"},
		{"evict --tier memory --all a b", exit.Usage, "kvfs: --all needs one mount, got 2 (see kvfs evict --help)\n"},

		{"config check /absent/c.yaml", exit.Config, "kvfs: /absent/c.yaml: no such file or directory\n"},
		{"config check --memory-size=7", exit.Config, "kvfs: flag --memory-size: memory.size: \"7\" needs a unit..."},
		{"config check --memory-size 1000TiB", exit.Config, "kvfs: memory size: memory.size 1000TiB (flag --memory-size) exceeds the memory of this machine, ..."},
		{"config check --elsewhere --memory-size 1000TiB", exit.OK, ""},
		{"config check --disk path=/absent/a/b,size=1GiB", exit.Config,
			"kvfs: disk directories: disk.dirs[0] (flag --disk): /absent/a/b: its parent /absent/a does not exist. Do: mkdir -p /absent/a, or mount the disk that it is on\n"},
		{"config check --disk path=/dev/shm/b,size=1GiB", exit.Config, "kvfs: disk directories: disk.dirs[0] (flag --disk): /dev/shm/b is on tmpfs, in memory. Do: ..."},
		{"config print --mode=standalone-store --memory-size=1GiB", exit.Config,
			"kvfs: flag --memory-size: memory.size: 1GiB excludes mode standalone-store (flag --mode), which contributes no memory: leave it out or set 0\n"},

		{"umount " + plain, exit.NotMount, "kvfs: " + plain + " is not a kvfs mount: nothing is mounted there\n"},
		{"umount /proc", exit.NotMount, "kvfs: /proc is not a kvfs mount: its type is proc\n"},
		{"status " + plain, exit.NotMount, "kvfs: " + plain + " is not a kvfs mount\n"},
		{"status /absent", exit.NotMount, "kvfs: /absent is not a kvfs mount: no such file or directory\n"},
		{"evict --tier memory " + plain, exit.NotMount, "kvfs: " + plain + " is not in a kvfs mount\n"},
		{"fsck " + plain + "/absent", fsckUnchecked, "kvfs: fsck: " + plain + "/absent: ..."},
		{"fsck " + plain, fsckUnchecked, "kvfs: fsck: " + plain + ": ..."},
		{"fsck " + good, fsckUnchecked, "kvfs: fsck: " + good + ": ..."},
	} {
		t.Run(tc.args, func(t *testing.T) {
			code, stdout, stderr := runCLI(strings.Fields(tc.args)...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			want, open := strings.CutSuffix(tc.stderr, "...")
			if !strings.HasPrefix(stderr, want) || !open && stderr != want {
				t.Errorf("stderr %q, want %q", stderr, tc.stderr)
			}
			if code != exit.OK && strings.Count(stderr, "\n") != 1 {
				t.Errorf("stderr is not one line: %q", stderr)
			}
			if (code == exit.OK) != (stdout != "") {
				t.Errorf("stdout %q", stdout)
			}
		})
	}
	if entries, err := os.ReadDir(plain); err != nil || len(entries) > 0 {
		t.Errorf("left behind %v, %v", entries, err)
	}
}

// TestConfigCommands shows that the commands see all sources, that print names
// origins, and that check reports every error on its own line (D3, D14).
func TestConfigCommands(t *testing.T) {
	cleanEnv(t)
	file := writeTemp(t, "c.yaml", "memory:\n  size: 1GiB\n")
	t.Setenv("KVFS_HTTP", "127.0.0.1:9100")
	code, out, _ := runCLI("config", "print", "--config", file, "--memory-policy", "s3fifo", "--memory-keep")
	for _, want := range []string{"size: 1GiB ", "# " + file + ":2\n", "# env KVFS_HTTP\n", "# flag --memory-policy\n", "keep: true "} {
		if code != exit.OK || !strings.Contains(out, want) {
			t.Errorf("exit code %d, no %q in\n%s", code, want, out)
		}
	}
	if _, out, _ := runCLI("config", "example"); out != string(docs.Example) {
		t.Error("example differs")
	}

	t.Setenv("KVFS_HTPP", "1")
	bad := writeTemp(t, "bad.yaml", "memory:\n  size: 1\n  keep: \"false\"\n")
	code, out, errs := runCLI("config", "check", bad, "--replicas", "1")
	want := []string{
		"kvfs: " + bad + ":2: memory.size: ", "kvfs: " + bad + ":3: memory.keep: ",
		`kvfs: env KVFS_HTPP: unknown variable "KVFS_HTPP"; did you mean "KVFS_HTTP"?`, "kvfs: flag --replicas: replicas: it needs bind",
	}
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	if code != exit.Config || out != "" || len(lines) != len(want) {
		t.Fatalf("exit code %d, stdout %q, stderr\n%s", code, out, errs)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("line %d: got %q, want %q", i, lines[i], want[i])
		}
	}
}

// TestVersion shows that kvfs prints the version that the linker may set.
func TestVersion(t *testing.T) {
	old := version
	version = "v9.8.7"
	defer func() { version = old }()
	if _, out, _ := runCLI("version"); !strings.HasPrefix(out, "kvfs v9.8.7 (go") {
		t.Errorf("got %q", out)
	}
}

// TestIntro shows that kvfs alone names commands that it has.
func TestIntro(t *testing.T) {
	_, out, _ := runCLI()
	named := regexp.MustCompile(`(?m)^  kvfs ([a-z]+)`).FindAllStringSubmatch(out, -1)
	if len(named) != 3 {
		t.Errorf("%d commands in\n%s", len(named), out)
	}
	for _, m := range named {
		if code, _, _ := runCLI(m[1], "--help"); code != exit.OK {
			t.Errorf("no command %s", m[1])
		}
	}
}

// TestGroups shows that kvfs --help lists each command below one of its titles.
func TestGroups(t *testing.T) {
	_, out, _ := runCLI("--help")
	title, at := "", map[string]string{}
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "  ") && len(words) > 1:
			at[words[0]] = title
		case strings.HasSuffix(line, ":\n"):
			title = strings.TrimSpace(line)
		}
	}
	for _, cmd := range newRootCommand().Commands() {
		if title := at[cmd.Name()]; cmd.IsAvailableCommand() && title != "Mount and run:" && title != "Look:" &&
			title != "Manage blocks:" && title != "Cluster:" && title != "Operate:" {
			t.Errorf("%s is below %q", cmd.Name(), title)
		}
	}
	if at["csi"] != "Operate:" || at["members"] != "Cluster:" {
		t.Errorf("csi is below %q, members below %q", at["csi"], at["members"])
	}
}

// TestHelp shows that each command with settings has the short help and that of all settings, and needs no
// arguments for either, and that other commands have their own.
func TestHelp(t *testing.T) {
	const hidden, heading = "--peer-timeout", "\nPeers:\n"
	for _, command := range []string{"mount", "serve", "run", "doctor", "doctor rdma", "config check", "config print"} {
		for _, all := range []bool{false, true} {
			flag := "--help"
			if all {
				flag += "-all"
			}
			code, out, errs := runCLI(append(strings.Fields(command), flag)...)
			if code != exit.OK || errs != "" {
				t.Errorf("%s %s: exit code %d, %s", command, flag, code, errs)
			}
			last := "\nRun kvfs " + command + " --help-all for the other "
			if !strings.Contains(out, heading) || strings.Contains(out, hidden) != all || strings.Contains(out, last) == all {
				t.Errorf("%s %s:\n%s", command, flag, out)
			}
		}
	}
	if _, out, _ := runCLI("status", "--help"); !strings.Contains(out, "--json") || strings.Contains(out, "help-all") {
		t.Errorf("status --help:\n%s", out)
	}
}
