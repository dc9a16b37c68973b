package owner

import (
	"errors"
	"reflect"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// TestAnswer shows what an owner tells of paths: its own block if no later version is known, the other holders of the latest
// version, and of which paths it does not know all; and that the asking node reads the same.
func TestAnswer(t *testing.T) {
	entry := func(path string, seq uint64) location.Entry {
		return location.Entry{Hash: location.HashPath(path), Seq: seq, Size: 3, Mode: 0o100644, UID: 7}
	}
	paths := []string{"own", "older", "newer", "same", "none", "foreign", "many"}
	own := make([]*message.BlockInfo, len(paths))
	for i, path := range paths[:4] {
		own[i] = &message.BlockInfo{Path: path, Seq: 5, Size: 3, Mode: 0o100644, UID: 7}
	}
	peers := map[string][]uint64{"older": {4}, "newer": {6, 6}, "same": {5}, "foreign": {1}, "many": make([]uint64, maxFound+1)}
	for i := range peers["many"] {
		peers["many"][i] = 5
	}
	locate := func(path string, buf []Holder) []Holder {
		for i, seq := range peers[path] {
			buf = append(buf, Holder{string(rune('a' + i)), entry(path, seq)})
		}
		return buf
	}
	s := NewScopes(Options{Self: "self", Log: zap.NewNop()})
	known := feed.NewParts(feed.MaxParts)
	for _, path := range paths {
		if path != "foreign" {
			known.Add(int(location.HashPath(path) >> 48))
		}
	}
	s.known.Store(&known)
	reply := s.Answer(paths, own, locate)
	if want := []uint32{4, 5}; !reflect.DeepEqual(reply.GetUnsure(), want) {
		t.Errorf("unsure of %v, want %v", reply.GetUnsure(), want)
	}
	s.all.Store(true)
	if unsure := s.Answer(paths, own, locate).GetUnsure(); len(unsure) != 1 || unsure[0] != 5 {
		t.Errorf("with all feeds complete: unsure of %v", unsure)
	}

	found, err := Found(reply, paths, func(node string, e location.Entry) (Holder, bool) { return Holder{node, e}, node != "h" })
	if err != nil {
		t.Fatal(err)
	}
	self := func(path string) Holder {
		e := entry(path, 5)
		e.Memory = true
		return Holder{"self", e}
	}
	want := []Holders[Holder]{
		{0, []Holder{self("own")}}, {1, []Holder{self("older")}}, {2, locate("newer", nil)},
		{3, append([]Holder{self("same")}, locate("same", nil)...)}, {6, locate("many", nil)[:maxFound-1]},
	}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("found %+v, want %+v", found, want)
	}
}

// TestFound shows that answers without sense are refused.
func TestFound(t *testing.T) {
	good := func() *wire.Found { return &wire.Found{Seq: 1, Mode: 0o100644} }
	for what, change := range map[string]func(w *wire.Found){
		"good":       func(*wire.Found) {},
		"path":       func(w *wire.Found) { w.Path = 1 },
		"node":       func(w *wire.Found) { w.Node = 1 },
		"no version": func(w *wire.Found) { w.Seq = 0 },
	} {
		w := good()
		change(w)
		reply := &wire.FindReply{Nodes: []string{"a"}, Found: []*wire.Found{w}}
		_, err := Found(reply, []string{"p"}, func(string, location.Entry) (bool, bool) { return true, true })
		if bad := errors.Is(err, rdma.ErrProtocol); bad != (what != "good") || !bad && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
