package client

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// TestBelowMount shows how names are told apart: by the topmost mount, through
// symbolic links that lead to it, and never by a look into it.
func TestBelowMount(t *testing.T) {
	dir := t.TempDir()
	mount := filepath.Join(dir, "kv")
	must(t, os.Mkdir(mount, 0o755))
	// Every look-up would follow a link in the mount.
	for name, target := range map[string]string{"link": mount, "kv/inner": "/", "twice": "link"} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	t.Chdir(mount)
	mounts := []*mountinfo.Info{
		{ID: 1, Mountpoint: "/", FSType: "ext4"}, {ID: 2, Mountpoint: mount, FSType: "ext4"}, {ID: 3, Mountpoint: mount, FSType: mounts.Type},
		{ID: 4, Mountpoint: mount + "/other", FSType: "tmpfs"}, {ID: 5, Mountpoint: "/second", FSType: mounts.Type},
	}
	for _, tc := range []struct {
		names []string
		paths []string
		err   string
	}{
		{[]string{mount + "/g/a", mount}, []string{"g/a", "."}, ""},
		{[]string{dir + "/link/g/a", dir + "/twice/./b", dir + "/link", dir + "/kv//c/"}, []string{"g/a", "b", ".", "c"}, ""},
		{[]string{"a", "./b/c", ".", "../kv/d"}, []string{"a", "b/c", ".", "d"}, ""},
		{[]string{mount + "/inner/etc"}, []string{"inner/etc"}, ""},
		{[]string{mount + "/other/a"}, nil, mount + "/other/a is not in a kvfs mount"},
		{[]string{mount + "x/a"}, nil, "is not in a kvfs mount"},
		{[]string{dir}, nil, "is not in a kvfs mount"},
		{[]string{mount + "/a", "/second/b"}, nil, "/second/b is in the mount /second, others are in " + mount},
	} {
		m, paths, err := belowMount(mounts, tc.names)
		switch {
		case tc.err == "" && (err != nil || m != mount || !slices.Equal(paths, tc.paths)):
			t.Errorf("%q: got %q in %s, %v; want %q", tc.names, paths, m, err, tc.paths)
		case tc.err != "" && (err == nil || !strings.HasSuffix(fmt.Sprint(err), tc.err)):
			t.Errorf("%q: got %v, want %q", tc.names, err, tc.err)
		}
	}
}

// TestWalkBlocks shows that files are found by the types in directories, that mounts
// inside are left out, and that what cannot be read is told.
func TestWalkBlocks(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "g/b", "g/h/c", "other/no"} {
		path := filepath.Join(dir, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)))
	}
	must(t, os.Symlink("a", filepath.Join(dir, "link")))
	c := &Controls{Mounts: []*mountinfo.Info{{ID: 1, Mountpoint: dir, FSType: mounts.Type}, {ID: 2, Mountpoint: dir + "/other", FSType: "tmpfs"}}}
	var got, bad []string
	each := func(path string) error { got = append(got, strings.TrimPrefix(path, dir)); return nil }
	failed := func(path string, err error) { bad = append(bad, fmt.Sprint(path, " ", err)) }
	must(t, c.WalkBlocks(dir, each, failed))
	slices.Sort(got)
	if want := []string{"/a", "/g/b", "/g/h/c"}; !slices.Equal(got, want) || bad != nil {
		t.Errorf("got %q and %q, want %q", got, bad, want)
	}
	if err := c.WalkBlocks("/absent", each, failed); err != nil || !slices.Equal(bad, []string{"/absent no such file or directory"}) {
		t.Errorf("got %v and %q", err, bad)
	}
	stop := errors.New("stop")
	if err := c.WalkBlocks(dir, func(string) error { return stop }, failed); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}
