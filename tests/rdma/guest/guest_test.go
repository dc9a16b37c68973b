package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestArchive shows that files written to a RAM disk are found there: each directory comes before its entries, once,
// at offsets that the kernel accepts.
func TestArchive(t *testing.T) {
	var disk bytes.Buffer
	a := newArchive(&disk)
	for name, content := range map[string]string{"a/b/file": "12345", "a/b/other": "", "top": "1234"} {
		if err := a.add(name, typeRegular|0o755, int64(len(content)), strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.link("lib", "usr/lib"); err != nil {
		t.Fatal(err)
	}
	if err := a.add("short", typeRegular, 10, strings.NewReader("123")); err == nil {
		t.Error("a file that is shorter than its header says was accepted")
	}
	disk.Truncate(disk.Len() - len("123") - entryBytes("short"))
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	got := entries(t, disk.Bytes())
	for name, want := range map[string]string{
		"a": "40755", "a/b": "40755", "a/b/file": "100755 12345", "a/b/other": "100755",
		"top": "100755 1234", "lib": "120777 usr/lib", "TRAILER!!!": "0",
	} {
		if len(got[name]) != 1 || got[name][0] != want {
			t.Errorf("%s: %q, want once %q", name, got[name], want)
		}
	}
	if len(got) != 7 {
		t.Errorf("entries %q", got)
	}
}

func entryBytes(name string) int { return (110 + len(name) + 1 + 3) &^ 3 }

// entries reads a RAM disk as the kernel's Documentation/driver-api/early-userspace has it:
// the mode in octal and the content, by name.
func entries(t *testing.T, b []byte) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	seen := map[string]bool{".": true}
	for len(b) > 0 {
		if len(b) < 110 || string(b[:6]) != "070701" {
			t.Fatalf("no header: %q", b[:min(len(b), 110)])
		}
		field := func(i int) int {
			n, err := strconv.ParseUint(string(b[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		mode, size, length := field(1), field(6), field(11)
		name := string(b[110 : 110+length-1])
		if dir := filepath.Dir(name); !seen[dir] {
			t.Errorf("%s comes before its directory", name)
		}
		seen[name] = true
		at := entryBytes(name)
		text := strconv.FormatInt(int64(mode), 8) + " " + string(b[at:at+size])
		found[name] = append(found[name], strings.TrimSpace(text))
		b = b[(at+size+3)&^3:]
	}
	return found
}

// TestFollow shows which lines of a machine are told on, and which exit code follows from its output.
func TestFollow(t *testing.T) {
	for _, c := range []struct {
		name, printed, lines string
		code                 int
		told                 bool
	}{
		{"all", "SeaBIOS\r\nx" + startedMark + "\r\none\r\ntwo\r\n" + endedMark + "0\r\n", "one two", 0, true},
		{"failed", startedMark + "\none\n" + endedMark + "3\n", "one", 3, true},
		{"died", startedMark + "\none\n", "one", 0, false},
		{"never began", "SeaBIOS\n" + endedMark + "0\n", "", 0, false},
		{"no number", startedMark + "\n" + endedMark + "\n", "", 0, false},
		{"line too long", startedMark + "\n" + strings.Repeat("x", 2<<20) + "\n" + endedMark + "0\n", "", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lines []string
			code, told := follow(strings.NewReader(c.printed), func(l string) { lines = append(lines, l) })
			if code != c.code || told != c.told || strings.Join(lines, " ") != c.lines {
				t.Errorf("%d %v %q, want %d %v %q", code, told, lines, c.code, c.told, c.lines)
			}
		})
	}
}

// TestComplete shows that an image that lacks a kernel, a module or a library is refused by
// name.
func TestComplete(t *testing.T) {
	b := &builder{names: map[string]bool{}, needs: map[string][]string{}}
	self, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	b.note("bin/sh", self)
	f, err := elf.NewFile(bytes.NewReader(self))
	if err != nil {
		t.Fatal(err)
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	err = b.complete()
	if err == nil {
		t.Fatal("an empty image is complete")
	}
	for _, want := range append(libs, "module rdma_rxe", "a kernel") {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: does not name %s", err, want)
		}
	}
	for _, m := range modules {
		b.names[m+".ko.xz"] = true
	}
	for _, lib := range libs {
		b.names[lib] = true
	}
	b.hasLinux = true
	if err := b.complete(); err != nil {
		t.Error(err)
	}
}

// TestOpen shows that a kept image is used only if it is whole.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := open(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no image: %v", err)
	}
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The sums are those of "abc", from FIPS 180-2.
	const sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	write(kernelFile, "abc")
	write(diskFile, "abc")
	write(manifestFile, `{"Sums":{"`+kernelFile+`":"`+sum+`","`+diskFile+`":"`+sum+`"}}`)
	if _, err := open(dir); err != nil {
		t.Error(err)
	}
	write(diskFile, "abd")
	if _, err := open(dir); err == nil || !strings.Contains(err.Error(), diskFile) {
		t.Errorf("damaged: %v", err)
	}
	write(manifestFile, "{")
	if _, err := open(dir); err == nil {
		t.Error("a manifest that cannot be read was accepted")
	}
}

// TestRun shows how a machine ends: with the exit code of its script, with an error if it
// goes before, if it says nothing, if it is given up.
func TestRun(t *testing.T) {
	if os.Getenv("KVFS_TEST_RDMA") == "" {
		t.Skip("runs virtual machines: make test-rdma, or KVFS_TEST_RDMA=1")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	image, err := Prepare(t.Context(), filepath.Join(cache, "kvfs", "guest"))
	if err != nil {
		t.Fatal(err)
	}
	given := filepath.Join(t.TempDir(), "given")
	if err := os.WriteFile(given, []byte("from outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	errGivenUp := errors.New("given up")
	for _, c := range []struct {
		name, script string
		silence      time.Duration
		code         int
		err          error
		line         string
	}{
		{"exit code", "stat -c %a /dir/given; cat /dir/given; echo; ls /sys/class/infiniband; exit 3", time.Minute, 3, nil, "600 from outside " + Device},
		{"panic", "echo bye; echo c >/proc/sysrq-trigger; sleep 1000", time.Minute, 0, ErrBroken, "bye"},
		{"given up", "echo give up; sleep 1000", time.Minute, 0, errGivenUp, "give up"},
		{"silent", "", time.Second, 0, ErrSilent, ""}, // no kernel boots so fast here
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			var lines []string
			code, err := image.Run(ctx, Options{
				Files: map[string]string{given: "/dir/given"}, Script: c.script, Dir: t.TempDir(),
				Silence: c.silence,
				Line: func(l string) {
					if l == "give up" {
						cancel(errGivenUp)
					}
					if strings.HasPrefix(l, "guest: ") {
						t.Log(l)
					} else {
						lines = append(lines, l)
					}
				},
			})
			if code != c.code || !errors.Is(err, c.err) {
				t.Errorf("exit code %d, %v, want %d, %v", code, err, c.code, c.err)
			}
			if got := strings.Join(lines, " "); got != c.line {
				t.Errorf("printed %q, want %q", got, c.line)
			}
		})
	}
}
