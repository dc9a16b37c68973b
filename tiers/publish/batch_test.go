package publish

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// decode decodes a payload as [time, events, rank], and returns the events.
func decode(t testing.TB, payload []byte) []any {
	t.Helper()
	var v []any
	if err := msgpack.Unmarshal(payload, &v); err != nil {
		t.Fatalf("%v in %x", err, payload)
	}
	if len(v) != 3 || fmt.Sprint(v[2]) != "0" {
		t.Fatalf("batch %v: want [time, events, 0]", v)
	}
	if ts, ok := v[0].(float64); !ok || time.Since(time.Unix(int64(ts), 0)).Abs() > time.Hour {
		t.Fatalf("time %v", v[0])
	}
	return v[1].([]any)
}

// found makes a match as a template would.
func found(group, hash string) match { return match{group: []byte(group), hash: []byte(hash)} }

// TestBatchMaps shows the events of a message as maps, with the fields of vLLM: fields without a
// default always, group_idx if the group is a number, locality on storage (A39, G1).
func TestBatchMaps(t *testing.T) {
	b := newBatch(hashInt, false, 16)
	b.cleared()
	b.add(false, "CPU", found("0", "0102030405060708090a0b0c0d0e0f10"))
	b.add(false, "STORAGE", found("0", "ff"))
	b.add(false, "DISK", found("0", "fe"))
	b.add(false, "CPU", found("0", "2"))
	b.add(false, "CPU", found("0", "2"))
	b.add(false, "CPU", found("g1", "3"))
	b.add(true, "CPU", found("0", "2"))
	b.add(true, "STORAGE", found("g1", "3"))
	b.add(false, "CPU", found("0", "2"))
	m := b.take("topic")
	if m.hashes != 8 {
		t.Errorf("%d hashes", m.hashes)
	}
	stored := func(medium string, group any, hashes ...any) map[string]any {
		e := map[string]any{
			"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": []any{},
			"block_size": int8(16), "lora_id": nil, "medium": medium, "lora_name": nil,
		}
		if group != nil {
			e["group_idx"] = group
		}
		if medium == "STORAGE" {
			e["locality"] = "LOCAL"
		}
		return e
	}
	want := []any{
		map[string]any{"type": "AllBlocksCleared"},
		stored("CPU", int8(0), uint64(0x090a0b0c0d0e0f10), int8(2)),
		stored("STORAGE", int8(0), uint8(0xff)),
		stored("DISK", int8(0), uint8(0xfe)),
		stored("CPU", nil, int8(3)),
		map[string]any{"type": "BlockRemoved", "block_hashes": []any{int8(2)}, "medium": "CPU", "group_idx": int8(0)},
		map[string]any{"type": "BlockRemoved", "block_hashes": []any{int8(3)}, "medium": "STORAGE", "locality": "LOCAL"},
		stored("CPU", int8(0), int8(2)),
	}
	if got := decode(t, payload(t, m)); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
	if b.take("topic") != nil {
		t.Error("a message of nothing")
	}
}

// TestBatchArrays shows the events as arrays, as older vLLM sent them, without trailing defaults.
func TestBatchArrays(t *testing.T) {
	b := newBatch(hashText, true, 0)
	b.cleared()
	b.add(false, "CPU", found("0", "block-\xff"))
	b.add(false, "CPU", found("g", "b"))
	b.add(true, "DISK", found("1", "c"))
	b.add(true, "DISK", found("g", "d"))
	m := b.take("")
	want := []any{
		[]any{"AllBlocksCleared"},
		[]any{"BlockStored", []any{"block-\ufffd"}, nil, []any{}, int8(0), nil, "CPU", nil, nil, int8(0)},
		[]any{"BlockStored", []any{"b"}, nil, []any{}, int8(0), nil, "CPU", nil},
		[]any{"BlockRemoved", []any{"c"}, "DISK", int8(1)},
		[]any{"BlockRemoved", []any{"d"}, "DISK"},
	}
	if got := decode(t, payload(t, m)); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
}

// TestBatchHashes shows the forms of hashes, and which names have none.
func TestBatchHashes(t *testing.T) {
	cases := []struct {
		form hashForm
		name string
		want any // nil: does not fit
	}{
		{hashInt, "FFeeddccbbaa99887766554433221100", uint64(0x7766554433221100)},
		{hashInt, "block", nil},
		{hashInt, "0x12", nil},
		{hashInt, "9f08@alice", nil},
		{hashBytes, "0@9f08", nil},
		{hashBytes, "9f08", []byte{0x9f, 0x08}},
		{hashBytes, "f08", []byte{0x0f, 0x08}},
		{hashBytes, "xyz", nil},
		{hashText, "block", "block"},
	}
	for _, c := range cases {
		b := newBatch(c.form, true, 0)
		if ok := b.add(true, "CPU", found("g", c.name)); ok != (c.want != nil) {
			t.Errorf("%s: told: %v", c.name, ok)
		} else if ok {
			m := b.take("")
			got := decode(t, payload(t, m))[0].([]any)[1].([]any)[0]
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got %#v, want %#v", c.name, got, c.want)
			}
		}
	}
}
