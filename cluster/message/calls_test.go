package message

import (
	"errors"
	"testing"

	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// TestEachName shows that names that cannot be entries of a directory are refused.
func TestEachName(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a\x00", string(make([]byte, 300))} {
		_, err := EachName("g", &wire.ListReply{Names: []*wire.Name{{Name: []byte(name), Info: &wire.BlockInfo{}}}}, func(Name) bool { return true })
		if !errors.Is(err, rdma.ErrProtocol) {
			t.Errorf("name %.10q: %v", name, err)
		}
	}
	if _, err := EachName("", &wire.ListReply{Names: []*wire.Name{{Name: []byte("a")}}}, nil); !errors.Is(err, rdma.ErrProtocol) {
		t.Errorf("no info: %v", err)
	}
}
