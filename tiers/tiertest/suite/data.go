package suite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// dataCases check that bytes and names come back unchanged.
func dataCases() []suiteCase {
	return []suiteCase{
		{name: "RoundTrip", run: checkRoundTrip},
		{name: "SizeZero", run: checkSizeZero},
		{name: "Keys", run: checkKeys},
		{name: "LongKeys", run: checkLongKeys},
		{name: "Groups", run: checkGroups},
		{name: "StoreWrongSum", run: checkStoreWrongSum},
		{name: "StoreShortSource", run: checkStoreShortSource},
		{name: "LoadWrongSum", run: checkLoadWrongSum},
		{name: "LoadWrongSize", run: checkLoadWrongSize},
		{name: "StoreUnknownSum", run: checkStoreUnknownSum},
	}
}

// roundTripSizes has both sides of a page, usual block sizes of engines, and an odd size.
var roundTripSizes = []int64{1, 4095, 4096, 4097, 64 << 10, 1 << 20, 4<<20 + 1}

// checkRoundTrip: random bytes of each size come back exactly, alone and all in one
// job.
func checkRoundTrip(h *harness) {
	var blocks []payload
	for i, size := range roundTripSizes {
		if size != h.size(size) {
			continue
		}
		p := h.payload(numberedKey("size", i), 0, size)
		h.wantAll(h.store(p), driver.Stored)
		h.wantAll(h.load(p), driver.Loaded)
		blocks = append(blocks, p)
	}
	h.wantAll(h.load(blocks...), driver.Loaded)
	h.tier.Remove(keysOf(blocks))
	h.wantAll(h.store(blocks...), driver.Stored)
	slices.Reverse(blocks)
	h.wantAll(h.load(blocks...), driver.Loaded)
}

// checkSizeZero: an empty block is stored and loaded, or refused; it has an outcome in any case. A
// negative size is never stored.
func checkSizeZero(h *harness) {
	p := newPayload(h.opts.Seed, numberedKey("zero", 0), 0, 0)
	outcomes := h.store(p)
	loaded := h.load(p)
	switch {
	case outcomes[0].Status == driver.Stored:
		h.wantAll(loaded, driver.Loaded)
	case !h.opts.Faulty: // a fault may fail the Store of a block that is then there
		h.never(loaded, driver.Loaded, "its Store was refused")
	}

	p = newPayload(h.opts.Seed, numberedKey("zero", 1), 0, 0)
	outcomes = h.edited(storeJob, func(tr *driver.Transfer) { tr.Size = -1 }, p)
	h.wantAll(outcomes, driver.Failed)
	h.never(outcomes, driver.Stored, "its size is negative")
}

// strangeHashes are valid names that a tier could confuse, escape wrongly, or take
// for a path of its own.
var strangeHashes = []block.Hash{
	"a", "A", "a ", " a", "a.", ".a", "..a", "...", "a/b", "a/b/c", "b", "c", "ab",
	"a\n", "a\tb", "a:b", "a\\b", "a%2fb", "a@b", "-rf",
	"~", "*", "?", "$HOME", "\"", "'", "\x01", "\x7f", "\xff", "\xff\xfe", "\xc3\xa4", "a\xcc\x88",
	"0", "00", "0x0", "tmp", "a.tmp", "con", "index", "lost+found", "deadbeef",
	"\x80", "0123456789abcdef/0123456789abcdef/0123456789abcdef",
}

// checkKeys: hashes are opaque bytes of any width, nested ones too; blocks with
// strange and similar names, in one job, do not meet.
func checkKeys(h *harness) {
	blocks := []payload{h.payload(block.Key{Hash: "in the empty group"}, 0, 777)}
	for i, hash := range strangeHashes {
		blocks = append(blocks, h.payload(block.Key{Group: "g", Hash: hash}, 0, 500+int64(i)))
	}
	every := make([]byte, 0, 255)
	for b := 1; b < 256; b++ {
		if b != '/' {
			every = append(every, byte(b))
		}
	}
	blocks = append(blocks, h.payload(block.Key{Group: "g", Hash: block.Hash(every)}, 0, 640))
	blocks = append(blocks, h.payload(block.Key{Group: block.GroupID(every), Hash: "a"}, 0, 641))
	for i, p := range blocks {
		if err := block.CheckPath(p.key.Path()); err != nil {
			h.fatalf("block %d: %v", i, err)
		}
	}
	h.wantAll(h.store(blocks...), driver.Stored)
	h.wantPresence(driver.Hit, keysOf(blocks)...)
	h.rng.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
	h.wantAll(h.load(blocks...), driver.Loaded)
	for _, p := range blocks {
		if n := h.tier.Remove([]block.Key{p.key}); n != 1 && !h.opts.Faulty {
			h.errorf("Remove %.80q: got %d, want 1", p.key.Path(), n)
		}
	}
}

// longKey returns a key of n bytes that ends in last.
func (h *harness) longKey(n int, last string) block.Key {
	h.t.Helper()
	path := strings.Repeat(strings.Repeat("x", 200)+"/", n/200+1)[:n-1-len(last)]
	if strings.HasSuffix(path, "/") { // no component may be empty
		path = strings.TrimSuffix(path, "/") + "y"
	}
	key, err := block.ParseKey(path + "/" + last)
	if err != nil {
		h.fatalf("key of %d bytes: %v", n, err)
	}
	return key
}

// checkLongKeys: a key up to the tier's limit is stored, a longer one is refused with
// ErrNameTooLong, and none is taken for one that differs in its last byte only.
func checkLongKeys(h *harness) {
	for _, n := range []int{block.MaxName, 1000, h.opts.MaxKeyBytes, h.opts.MaxKeyBytes + 1, block.MaxPath} {
		if n < block.MaxName || n > block.MaxPath {
			continue
		}
		var blocks []payload
		for _, last := range []string{"a", "b"} {
			blocks = append(blocks, h.payload(h.longKey(n, last), 0, 3000))
		}
		must := n <= 1000 || n <= h.opts.MaxKeyBytes
		mustNot := h.opts.MaxKeyBytes > 0 && n > h.opts.MaxKeyBytes
		for i, o := range h.store(blocks...) {
			loaded := h.load(blocks[i])
			switch {
			case o.Status == driver.Stored && !mustNot:
				h.wantAll(loaded, driver.Loaded)
			case !h.opts.Faulty && (must || !errors.Is(o.Err, block.ErrNameTooLong)):
				h.errorf("Store of a key of %d bytes: got %v (%v), want stored or ErrNameTooLong, by the limit",
					n, o.Status, o.Err)
			}
		}
		if e, ok := ability[driver.Enumerator](h.tier); ok && must {
			h.wantListed(e, blocks)
		}
		h.tier.Remove(keysOf(blocks))
	}
}

// checkGroups: one hash in several groups is several blocks, and no way of
// writing group and hash one after the other makes two keys one (C20).
func checkGroups(h *harness) {
	keys := []block.Key{
		{Group: "a", Hash: "bc"}, {Group: "ab", Hash: "c"}, {Group: "", Hash: "abc"}, {Group: "b", Hash: "bc"},
		{Group: "a", Hash: "b/c"}, {Group: "b", Hash: "c"}, {Group: "", Hash: "bc"}, {Group: "c", Hash: "bc"},
		{Group: "a:b", Hash: "c"}, {Group: "a", Hash: "b:c"}, {Group: "a@b", Hash: "c"}, {Group: "a", Hash: "b@c"},
	}
	for stored := range keys {
		p := h.payload(keys[stored], 1, 999)
		h.wantAll(h.store(p), driver.Stored)
		for i, key := range keys {
			if i == stored {
				continue
			}
			h.wantPresence(driver.Miss, key)
			// Of the same size as the one stored, so that a mix-up loads.
			outcomes := h.load(h.payload(key, 2, 999))
			h.wantAll(outcomes, driver.Absent)
			h.never(outcomes, driver.Loaded, fmt.Sprintf("only %q is stored", keys[stored].Path()))
		}
		h.wantAll(h.load(p), driver.Loaded)
		h.tier.Remove([]block.Key{keys[stored]})
	}

	blocks := make([]payload, len(keys)) // all at once, of one size
	for i, key := range keys {
		blocks[i] = h.payload(key, 3, 999)
	}
	h.wantAll(h.store(blocks...), driver.Stored)
	h.wantAll(h.load(blocks...), driver.Loaded)
	if n := h.tier.Remove(keys[:1]); n != 1 && !h.opts.Faulty {
		h.errorf("Remove %q: got %d, want 1", keys[0].Path(), n)
	}
	h.wantAll(h.load(blocks[1:]...), driver.Loaded)
}

// edited runs a job whose transfers edit has made wrong. What is in the files is
// then for the case to check.
func (h *harness) edited(op jobKind, edit func(tr *driver.Transfer), blocks ...payload) []driver.Outcome {
	h.t.Helper()
	return h.settle(h.submit(jobSpec{op: op, blocks: blocks, edit: edit}))
}

// checkStoreWrongSum: bytes that disagree with the checksum of their Store are never loaded with
// it, whether the tier detects it at the Store or at the Load.
func checkStoreWrongSum(h *harness) {
	good, bad := h.payload(numberedKey("sum", 0), 0, 5000), h.payload(numberedKey("sum", 1), 0, 5000)
	h.edited(storeJob, func(tr *driver.Transfer) {
		if tr.Key == bad.key {
			tr.Sum.Sum ^= 1
		}
	}, good, bad)
	h.wantAll(h.load(good), driver.Loaded)
	outcomes := h.edited(loadJob, func(tr *driver.Transfer) { tr.Sum.Sum ^= 1 }, bad)
	h.never(outcomes, driver.Loaded, "its bytes disagree with the checksum that it was stored with")
	h.checkCorruptIsGone(outcomes)
}

// checkCorruptIsGone: a tier that fails a Load with ErrCorrupt has dropped the block already.
func (h *harness) checkCorruptIsGone(outcomes []driver.Outcome) {
	h.t.Helper()
	for _, o := range outcomes {
		if errors.Is(o.Err, block.ErrCorrupt) {
			h.wantPresence(driver.Miss, o.Key)
		}
	}
}

// checkStoreShortSource: a file that ends early is not stored as a whole block.
func checkStoreShortSource(h *harness) {
	p := h.payload(numberedKey("short", 0), 0, 10000)
	outcomes := h.edited(storeJob, func(tr *driver.Transfer) {
		if err := tr.File.Truncate(tr.Size / 2); err != nil {
			h.fatalf("truncate: %v", err)
		}
	}, p)
	h.never(outcomes, driver.Stored, "its file ends half way")
	h.wantAll(outcomes, driver.Failed)
	h.never(h.load(p), driver.Loaded, "its Store failed")
	outcomes = h.store(p) // a failed Store leaves nothing behind
	h.wantAll(outcomes, driver.Stored)
	h.wantAll(h.load(p), driver.Loaded)
}

// checkLoadWrongSum: a Load with another checksum than the recorded one asks for another version:
// Absent. The copy stays.
func checkLoadWrongSum(h *harness) {
	blocks := h.payloads("expect", 3, 5000)
	h.wantAll(h.store(blocks...), driver.Stored)
	outcomes := h.edited(loadJob, func(tr *driver.Transfer) {
		if tr.Key == blocks[1].key {
			tr.Sum.Sum ^= 1 << 63
		}
	}, blocks...)
	h.wantStatus(outcomes, 0, driver.Loaded)
	h.never(outcomes[1:2], driver.Loaded, "it has another checksum than the job expects")
	h.wantStatus(outcomes, 1, driver.Absent)
	h.wantStatus(outcomes, 2, driver.Loaded)
	h.checkCorruptIsGone(outcomes)
	h.wantAll(h.load(blocks...), driver.Loaded)
}

// checkLoadWrongSize: Loaded means exactly Size bytes, so another size means another version:
// Absent. The copy stays.
func checkLoadWrongSize(h *harness) {
	for i, delta := range []int64{-1, 1, -4096, 4096} {
		p := h.payload(numberedKey("wrong-size", i), 0, 12288)
		if int64(len(p.data))+delta < 1 {
			continue
		}
		h.wantAll(h.store(p), driver.Stored)
		outcomes := h.edited(loadJob, func(tr *driver.Transfer) {
			tr.Size += delta
			tr.Sum = block.Checksum{}
			if err := tr.File.Truncate(tr.Size); err != nil {
				h.fatalf("truncate: %v", err)
			}
		}, p)
		h.never(outcomes, driver.Loaded, fmt.Sprintf("the job asks for %+d bytes", delta))
		h.wantAll(outcomes, driver.Absent)
		h.checkCorruptIsGone(outcomes)
		h.wantAll(h.load(p), driver.Loaded)
	}
}

// checkStoreUnknownSum: a Store without a checksum computes it. settle has checked that the outcome
// reports it. Later it is the recorded one.
func checkStoreUnknownSum(h *harness) {
	blocks := h.payloads("compute-sum", 4, 5000)
	forget := func(tr *driver.Transfer) { tr.Sum = block.Checksum{} }
	if !h.wantAll(h.edited(storeJob, forget, blocks...), driver.Stored) {
		return
	}
	h.wantAll(h.load(blocks...), driver.Loaded)
	h.wantAll(h.edited(loadJob, forget, blocks...), driver.Loaded)
	wrong := func(tr *driver.Transfer) { tr.Sum.Sum ^= 1 }
	h.wantAll(h.edited(loadJob, wrong, blocks...), driver.Absent)
	if e, ok := ability[driver.Enumerator](h.tier); ok {
		h.wantListed(e, blocks)
	}
}
