package client

import (
	"slices"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// TestOnly shows which mount a command without an argument means: the only one that can be seen, however often it is
// in the table, and none if there are several.
func TestOnly(t *testing.T) {
	at := func(minor int, point string) *mountinfo.Info {
		return &mountinfo.Info{Minor: minor, Mountpoint: point, FSType: mounts.Type}
	}
	root := &mountinfo.Info{Minor: 1, Mountpoint: "/", FSType: "ext4"}
	for _, tc := range []struct {
		table  []*mountinfo.Info
		points []string
		err    string
		code   int
	}{
		{nil, nil, "there is no kvfs mount here; to make one, run: kvfs mount DIR", exit.NotMount},
		{[]*mountinfo.Info{root}, nil, "there is no kvfs mount here; to make one, run: kvfs mount DIR", exit.NotMount},
		{[]*mountinfo.Info{root, at(7, "/m")}, []string{"/m"}, "", 0},
		{[]*mountinfo.Info{root, at(7, "/m"), at(7, "/bind")}, []string{"/m"}, "", 0},
		{[]*mountinfo.Info{root, at(6, "/m"), at(7, "/m")}, []string{"/m"}, "", 0},
		{[]*mountinfo.Info{root, at(7, "/m"), {Minor: 8, Mountpoint: "/m", FSType: "tmpfs"}}, nil, "there is no kvfs mount here; to make one, run: kvfs mount DIR", exit.NotMount},
		{[]*mountinfo.Info{root, at(8, "/n\n"), at(7, "/m")}, []string{"/m", "/n\n"}, `there are 2 kvfs mounts; name one of them: /m, /n\n`, exit.Usage},
	} {
		c := &Controls{Mounts: tc.table}
		if got := c.Points(); !slices.Equal(got, tc.points) {
			t.Errorf("got %q, want %q", got, tc.points)
		}
		got, err := c.Only()
		switch {
		case err == nil && (tc.err != "" || got != tc.points[0]):
			t.Errorf("%q: got %q, want error %q", tc.points, got, tc.err)
		case err != nil && (err.Error() != tc.err || exit.Code(err) != tc.code):
			t.Errorf("%q: got error %q with code %d, want %q with %d", tc.points, err, exit.Code(err), tc.err, tc.code)
		}
	}
}
