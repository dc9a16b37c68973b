package block_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
)

// TestUserAttrs sets, replaces and removes attributes, up to the limit (H2).
func TestUserAttrs(t *testing.T) {
	var u block.UserAttrs
	do := func(want error, name, value string, mode block.SetMode) {
		t.Helper()
		next, err := u.Set(name, value, mode)
		if !errors.Is(err, want) {
			t.Errorf("set %s: %v, want %v", name, err, want)
		}
		if err != nil && next != u {
			t.Errorf("set %s failed, and changed the attributes", name)
		}
		u = next
	}
	do(block.ErrNoAttr, "user.a", "1", block.SetReplace)
	do(nil, "user.a", "1", block.SetCreate)
	do(block.ErrExist, "user.a", "2", block.SetCreate)
	do(nil, "user.b", "", block.SetAny)
	do(nil, "user.a", "\x00\xff", block.SetReplace)
	if got := u.Names(); got != "user.b\x00user.a\x00" {
		t.Errorf("names %q", got)
	}
	if v, ok := u.Get("user.a"); v != "\x00\xff" || !ok {
		t.Errorf("got %q, %v", v, ok)
	}
	if v, ok := u.Get("user.b"); v != "" || !ok {
		t.Errorf("got %q, %v", v, ok)
	}
	if _, ok := u.Get("user.c"); ok {
		t.Error("an attribute that was not set")
	}
	do(block.ErrAttrSize, "user.c", strings.Repeat("x", block.MaxUserAttrs+1), block.SetAny)
	do(block.ErrNoSpace, "user.c", strings.Repeat("x", block.MaxUserAttrs), block.SetAny)
	do(nil, "user.c", strings.Repeat("x", block.MaxUserAttrs-len(u)-3-len("user.c")), block.SetAny)
	if len(u) != block.MaxUserAttrs || u.Check() != nil {
		t.Errorf("%d bytes, %v", len(u), u.Check())
	}
	do(block.ErrNoSpace, "user.d", "", block.SetAny)
	for _, name := range []string{"user.c", "user.b", "user.a"} {
		next, err := u.Remove(name)
		if err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
		u = next
	}
	if _, err := u.Remove("user.a"); u != "" || !errors.Is(err, block.ErrNoAttr) {
		t.Errorf("%q is left, %v", u, err)
	}
}

// FuzzUserAttrs: what Check accepts is what Set makes of its attributes.
func FuzzUserAttrs(f *testing.F) {
	u, _ := block.UserAttrs("").Set("user.a", "value", block.SetAny)
	u, _ = u.Set("user.b", "", block.SetAny)
	f.Add(string(u))
	f.Add("\x01\xff\xffa")
	f.Fuzz(func(t *testing.T, s string) {
		u, again := block.UserAttrs(s), block.UserAttrs("")
		if u.Check() != nil {
			return
		}
		for _, name := range strings.Split(strings.TrimSuffix(u.Names(), "\x00"), "\x00") {
			if name == "" {
				continue
			}
			value, _ := u.Get(name)
			var err error
			if again, err = again.Set(name, value, block.SetCreate); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		if again != u {
			t.Errorf("got %q, from %q", again, u)
		}
	})
}
