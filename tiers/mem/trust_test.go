package mem

import (
	"bytes"
	"context"
	"errors"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
)

// encode returns a change of some fields, with the checksum made good.
func encode(change func(*format)) func([]byte) []byte {
	return func(b []byte) []byte {
		f, err := parseFormat(b)
		if err != nil {
			panic(err)
		}
		change(&f)
		return f.encode()
	}
}

// TestDiscardedStores: a store that cannot be trusted is emptied, with a reason.
func TestDiscardedStores(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		change       func([]byte) []byte     // of kvfs-memory; nil: spoil does something else
		spoil        func(path string) error // of kvfs-memory
	}{
		{"newer version", `format version "2", not 1`, func([]byte) []byte { return []byte("kvfs-memory 2\nsomething else\n") }, nil},
		{"other uid", "store of uid 4242", encode(func(f *format) { f.uid = 4242 }), nil},
		{"owner", "directory of uid 4242", nil, func(path string) error { return os.Chown(filepath.Dir(path), 4242, 4242) }},
		{"other id", `store "other", not "default"`, encode(func(f *format) { f.id = "other" }), nil},
		{"other attribute", `records in attribute "trusted.x"`, encode(func(f *format) { f.attr = "trusted.x" }), nil},
		{"bad crc", "damaged: crc", func(b []byte) []byte { return bytes.Replace(b, []byte("uid "), []byte("uid 1"), 1) }, nil},
		{"cut", "damaged: number of lines", func(b []byte) []byte { return b[:len(b)/2] }, nil},
		{"empty", "not that of a store", func([]byte) []byte { return nil }, nil},
		{"symbolic link", "too many levels of symbolic links", nil, func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			modes(t, func(t *testing.T, o Options) {
				s := open(t, o)
				put(t, s, "g/a", "data")
				s.Close(true)
				path := filepath.Join(o.Dir, formatName)
				spoil := tc.spoil
				if tc.change != nil {
					spoil = func(path string) error {
						b, err := os.ReadFile(path)
						return errors.Join(err, os.WriteFile(path, tc.change(b), 0o600))
					}
				}
				if err := spoil(path); errors.Is(err, os.ErrPermission) {
					t.Skip(err)
				} else if err != nil {
					t.Fatal(err)
				}
				logger, logs := observer.New(zap.WarnLevel)
				o.Logger = zap.New(logger)
				s = open(t, o)
				if !strings.Contains(s.discarded, tc.reason) || logs.Len() == 0 {
					t.Errorf("got reason %q and %d log lines, want %q", s.discarded, logs.Len(), tc.reason)
				}
				if got := paths(t, s); len(got) != 0 {
					t.Errorf("adopted %v", got)
				}
				put(t, s, "g/b", "data")
				s.Close(true)
				s = open(t, o)
				if got := paths(t, s); len(got) != 1 || s.discarded != "" {
					t.Errorf("after that: adopted %v, discarded %q", got, s.discarded)
				}
			})
		})
	}
}

// TestNoFormat: a mounted store that lost kvfs-memory is discarded; a directory
// that did is no longer known as a store, so nothing in it is touched.
func TestNoFormat(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := open(t, o)
		file := s.path(put(t, s, "g/a", "data"))
		s.Close(true)
		must(t, os.Remove(filepath.Join(o.Dir, formatName)))
		if !o.NoMount {
			s = open(t, o)
			if got := paths(t, s); s.discarded != "no kvfs-memory" || len(got) != 0 {
				t.Errorf("discarded %q, adopted %v", s.discarded, got)
			}
			return
		}
		if s, err := Open(context.Background(), o); !errors.Is(err, block.ErrInvalid) {
			t.Errorf("got %v, %v", s, err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	})
}

// TestDamagedRecords: a flip of any byte of a record costs that file and no other;
// so do foreign names and types in a bucket.
func TestDamagedRecords(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := open(t, o)
		good := put(t, s, "g/good", "data")
		raw := make([]byte, maxRecord)
		n, err := unix.Getxattr(s.path(good), s.attr, raw)
		must(t, err)
		for i := range n {
			id := put(t, s, "g/good", "data")
			b := append([]byte(nil), raw[:n]...)
			putID(b, id)
			b[i] ^= 1 << (i % 8)
			must(t, unix.Setxattr(s.path(id), s.attr, b, 0))
		}
		other := put(t, s, "g/good", "data")
		if err := unix.Setxattr(s.path(other), s.attr, raw[:n], 0); err != nil { // another blob's
			t.Fatal(err)
		}
		long := put(t, s, "g/good", "data")
		must(t, unix.Setxattr(s.path(long), s.attr, make([]byte, maxRecord+1), 0))
		foreign := 0
		for _, name := range []string{
			"b/00/note", "b/01/0000000000000002", "b/ff/ffffffffffffffff", "b/00/0000000000000000",
		} {
			must(t, os.WriteFile(filepath.Join(o.Dir, name), nil, 0o600))
			foreign++
		}
		must(t, errors.Join(os.Mkdir(o.Dir+"/b/03/dir", 0o700), os.Symlink("/", o.Dir+"/b/04/0000000100000004")))
		foreign += 2
		s.Close(true)
		s = open(t, o)
		got := paths(t, s)
		if want := int64(n + 2 + foreign); len(got) != 1 || got["g/good"] != good || s.Status().Damaged != want {
			t.Errorf("adopted %v with %+v, want blob %d only and %d damaged", got, s.Status(), good, want)
		}
		var left []string
		filepath.WalkDir(o.Dir+"/b", func(path string, d iofs.DirEntry, err error) error {
			if !d.IsDir() || d.Name() == "dir" {
				left = append(left, path)
			}
			return err
		})
		if len(left) != 1 {
			t.Errorf("left: %v", left)
		}
		if _, err := os.Stat("/etc"); err != nil {
			t.Error(err)
		}
	})
}

// TestForeignDirectory: a directory with other files is refused and untouched,
// by Open and Discard, and so is a symbolic link.
func TestForeignDirectory(t *testing.T) {
	for _, noMount := range []bool{false, true} {
		dir := shmDir(t)
		file := dir + "/b/precious"
		err := errors.Join(os.Mkdir(dir+"/b", 0o700), os.WriteFile(file, []byte("x"), 0o600),
			os.WriteFile(dir+"/lock", nil, 0o600))
		must(t, err)
		if s, err := Open(context.Background(), Options{Dir: dir, NoMount: noMount}); !errors.Is(err, block.ErrInvalid) {
			t.Errorf("Open: got %v, %v", s, err)
		}
		if err := Discard(dir); !errors.Is(err, block.ErrInvalid) {
			t.Errorf("Discard: got %v", err)
		}
		for _, path := range []string{file, dir + "/lock"} {
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		}
		link := shmDir(t) + "/link"
		must(t, os.Symlink(shmDir(t), link))
		if s, err := Open(context.Background(), Options{Dir: link, NoMount: noMount}); err == nil {
			s.Close(false)
			t.Error("Open follows a symbolic link")
		}
		if err := Discard(link); err == nil {
			t.Error("Discard follows a symbolic link")
		}
	}
}

// TestNoAttributes: without extended attributes, on ramfs, the store works, says
// that it cannot be adopted, and keep keeps nothing.
func TestNoAttributes(t *testing.T) {
	requireMount(t)
	base := shmDir(t) + "/ramfs"
	must(t, os.Mkdir(base, 0o700))
	if err := unix.Mount("kvfs-test", base, "ramfs", 0, ""); err != nil {
		t.Skipf("mount ramfs: %v", err)
	}
	logger, logs := observer.New(zap.WarnLevel)
	o := Options{Dir: base + "/s", NoMount: true, Logger: zap.New(logger)}
	s := open(t, o)
	if n := logs.FilterMessageSnippet("extended attributes").Len(); n != 1 {
		t.Errorf("warned %d times: %v", n, logs.All())
	}
	id := put(t, s, "g/a", "data")
	f, err := s.Open(id)
	must(t, err)
	defer f.Close()
	if err := s.Uncommit(id, f); err != nil || s.Status().Adoptable {
		t.Errorf("got %v, %+v", err, s.Status())
	}
	must(t, s.Close(true))
	if _, err := os.Lstat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory: %v", err)
	}
}

// TestClaim: a directory of another user is neither used nor entered by Open, and
// one of ours that others may enter is closed to them.
func TestClaim(t *testing.T) {
	base := shmDir(t)
	must(t, os.Chmod(base, 0o755))
	f, err := openParent(context.Background(), place{parent: base, own: true}, true, unix.LOCK_EX)
	must(t, err)
	f.Close()
	if fi, err := os.Stat(base); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v", fi.Mode(), err)
	}
	if os.Geteuid() != 0 {
		t.Skip("chown needs root")
	}
	must(t, os.Chown(base, 4242, 4242))
	if f, err := openParent(context.Background(), place{parent: base, own: true}, true, unix.LOCK_EX); !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v, %v", f, err)
	}
}

// TestRemovedDirectories shows that a store from which somebody has removed everything says
// so: a new file is refused with EIO, for ENOENT would mean that the block, or the directory
// that it is to be in, is absent.
func TestRemovedDirectories(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		logger, logs := observer.New(zap.ErrorLevel)
		o.Logger = zap.New(logger)
		s := open(t, o)
		id := put(t, s, "g/a", "bytes")
		must(t, os.RemoveAll(filepath.Join(s.Dir(), bucketsName)))
		for range 2 {
			_, f, err := s.Create()
			if err == nil {
				f.Close()
			}
			if !errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOENT) || errors.Is(err, block.ErrNotFound) {
				t.Errorf("Create: got %v, want EIO", err)
			}
		}
		if _, err := s.Open(id); !errors.Is(err, block.ErrNotFound) {
			t.Errorf("Open: got %v, want %v", err, block.ErrNotFound)
		}
		if n := logs.Len(); n != 1 {
			t.Errorf("%d errors logged, want 1: %v", n, logs.All())
		}
	})
}
