//go:build ofi && cgo

package fabric

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/rdma"
)

func TestAddress(t *testing.T) {
	a := address{provider: "verbs;ofi_rxm", instance: 1 << 63, format: 2, rails: []railAddr{
		{[]byte("0123456789abcdef"), spot{0, 1}}, {[]byte{0, 0xff}, spot{^uint64(0), 1 << 40}},
	}}
	text := a.String()
	b, err := parseAddress(text)
	if err != nil || b.String() != text || !bytes.Equal(b.rails[1].endpoint, a.rails[1].endpoint) || b.rails[1].words != a.rails[1].words {
		t.Errorf("%s: %+v, %v", text, b, err)
	}
	many := "fabric1/tcp/1/2/" + strings.Repeat("AAAA:0:1,", MaxRails)
	for _, bad := range []string{
		"", "fabric1", "fabric2/tcp/1/2/AAAA:0:1", "fabric1//1/2/AAAA:0:1", "fabric1/tcp/x/2/AAAA:0:1", "fabric1/tcp/1/fffffffff/AAAA:0:1",
		"fabric1/tcp/1/2/", "fabric1/tcp/1/2/AAAA", "fabric1/tcp/1/2/AAAA:0", "fabric1/tcp/1/2/AAAA:0:1:2", "fabric1/tcp/1/2/!:0:1",
		"fabric1/tcp/1/2/AAAA:-1:1", "fabric1/tcp/1/2/AAAA:0:10000000000000000", "fabric1/tcp/1/2/" + strings.Repeat("A", 200) + ":0:1",
		"fabric1/tcp/1/2/AAAA:0:1/", many + "AAAA:0:1", strings.Repeat("a", maxAddr+1),
	} {
		if a, err := parseAddress(bad); err == nil {
			t.Errorf("%q: %+v", bad, a)
		}
	}
}

func TestKey(t *testing.T) {
	k := regionKey{slot: 7, token: 9, spots: make([]spot, MaxRails)}
	b := k.encode()
	if len(b) > rdma.MaxKey {
		t.Errorf("key of %d bytes", len(b))
	}
	got, err := parseKey(b, MaxRails)
	if err != nil || got.slot != 7 || got.token != 9 || len(got.spots) != MaxRails {
		t.Errorf("%+v, %v", got, err)
	}
	zero := regionKey{slot: 0, token: 9, spots: make([]spot, 1)}
	far := regionKey{slot: tableSlots, token: 9, spots: make([]spot, 1)}
	none := regionKey{slot: 1, spots: make([]spot, 1)}
	for _, c := range []struct {
		key   []byte
		rails int
	}{{nil, 1}, {b, 1}, {b[:len(b)-1], MaxRails}, {append(b, 0), MaxRails}, {zero.encode(), 1}, {far.encode(), 1}, {none.encode(), 1}, {make([]byte, 5000), 1}} {
		if k, err := parseKey(c.key, c.rails); !errors.Is(err, rdma.ErrProtocol) {
			t.Errorf("key of %d bytes for %d rails: %+v, %v", len(c.key), c.rails, k, err)
		}
	}
}

// FuzzAddress shows that parsed addresses are what was meant, and that others are refused.
func FuzzAddress(f *testing.F) {
	f.Add("fabric1/tcp/1/2/AAAA:0:1,AAAA:ff:fe")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddress(s)
		if err != nil {
			return
		}
		b, err := parseAddress(a.String())
		if err != nil || a.String() != b.String() {
			t.Errorf("%q: %q, %v", s, a, err)
		}
	})
}

// TestConnectErrors shows the errors for addresses of the right form.
func TestConnectErrors(t *testing.T) {
	tr := open(t, Options{})
	change := func(f func(*address)) string {
		a, err := parseAddress(tr.Addr())
		must(t, err)
		f(&a)
		return a.String()
	}
	for _, c := range []struct {
		name, addr  string
		unavailable bool
	}{
		{"another provider", change(func(a *address) { a.provider = "efa" }), true},
		{"another format", change(func(a *address) { a.format++ }), true},
		{"short endpoint", change(func(a *address) { a.rails[0].endpoint = a.rails[0].endpoint[:8] }), false},
		{"long endpoint", change(func(a *address) { a.rails[0].endpoint = make([]byte, 100) }), false},
		{"another family", change(func(a *address) { a.rails[0].endpoint[0] = 10 }), false},
		{"host and port", "127.0.0.1:7000", false},
	} {
		_, err := tr.Connect(c.addr)
		fails(t, c.name, err, c.unavailable)
	}
	p := connect(t, tr, change(func(a *address) { a.instance++ }))
	if err := p.Probe(t.Context()); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("probe of another instance: %v", err)
	}
}
