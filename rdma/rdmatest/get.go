package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"os"
	"reflect"
	"strings"

	"github.com/kvfs/kvfs/rdma"
)

// margin is how many bytes lie before and after the destination.
const margin = 5000

// want is one item of a Get with its result.
type want struct {
	name   string
	refuse error // returned by Accept
	// hook, if not nil, is called by Accept.
	hook func()
	// arrived, if not nil, is called by writes to the hash.
	arrived func()
	file    *os.File // made by Accept if nil
	off     int64

	header []byte
	size   int64
	hash   hash.Hash64
	before []byte // content of the file before
	done   int
	err    error
	at     int // when done was called
}

// get asks for wants in one Get.
func (e *env) get(ctx context.Context, p rdma.Peer, wants ...*want) error {
	calls := 0
	items := make([]*rdma.Item, len(wants))
	for i, w := range wants {
		items[i] = &rdma.Item{
			Name: []byte(w.name),
			Accept: func(header []byte, size int64) (rdma.Dest, error) {
				if w.hook != nil {
					w.hook()
				}
				w.header, w.size = append([]byte{}, header...), size
				if w.refuse != nil {
					return rdma.Dest{}, w.refuse
				}
				return w.dest(e), nil
			},
			Done: func(err error) {
				w.done++
				w.err = err
				w.at = calls
				calls++
			},
		}
	}
	var err error
	if hung := e.within(func() error { err = p.(rdma.Getter).Get(ctx, items); return nil }); hung != nil {
		e.Fatalf("Get does not return")
	}
	for i, w := range wants {
		if w.done != 1 || w.at != i {
			e.Errorf("item %d of %d: Done called %d times, as number %d", i, len(wants), w.done, w.at)
		}
	}
	return err
}

// dest makes the destination of w, with bytes around it that must stay.
func (w *want) dest(e *env) rdma.Dest {
	w.hash = newHash()
	if w.file == nil {
		w.before = pattern(99, margin)
		w.file = newFile(e, w.before[:min(int(w.off), margin)])
		if w.off > 0 {
			if _, err := w.file.WriteAt(w.before, w.off+w.size); err != nil {
				e.Fatalf("prepare file: %v", err)
			}
		}
	}
	dst := rdma.Dest{File: w.file, Off: w.off, Hash: w.hash}
	if w.arrived != nil {
		dst.Hash = &heldHash{Hash64: w.hash, arrived: w.arrived}
	}
	return dst
}

// heldHash reports its bytes.
type heldHash struct {
	hash.Hash64
	arrived func()
}

func (h *heldHash) Write(b []byte) (int, error) {
	h.arrived()
	return h.Hash64.Write(b)
}

// holds checks that w was answered with content and that no other bytes were written.
func (w *want) holds(e *env, content []byte) {
	e.Helper()
	if w.err != nil {
		e.Errorf("%.40q: %v", w.name, w.err)
		return
	}
	if w.size != int64(len(content)) {
		e.Errorf("%.40q: announced %d bytes of %d", w.name, w.size, len(content))
	}
	if !holds(e, w.file, w.off, content) {
		e.Errorf("%.40q: wrong bytes", w.name)
	}
	if got := w.hash.Sum64(); got != checksum(content) {
		e.Errorf("%.40q: hash %x, want %x", w.name, got, checksum(content))
	}
	end := w.off + w.size
	if w.off > 0 {
		n := min(int(w.off), margin)
		if !holds(e, w.file, 0, w.before[:n]) {
			e.Errorf("%.40q: wrote before the place", w.name)
		}
		if !holds(e, w.file, end, w.before) {
			e.Errorf("%.40q: wrote behind the place", w.name)
		}
		end += margin
	}
	if info, err := w.file.Stat(); err != nil || info.Size() != end {
		e.Errorf("%.40q: file of %d bytes, want %d (%v)", w.name, info.Size(), end, err)
	}
}

// fails checks that w was answered with an error of the kind.
func (w *want) fails(e *env, kind error) {
	e.Helper()
	if !errors.Is(w.err, kind) {
		e.Errorf("%.40q: %v, want %v", w.name, w.err, kind)
	}
}

func checkCaps(e *env) {
	c := e.holder.Caps()
	if c.Proto == "" || !reflect.DeepEqual(c, e.reader.Caps()) {
		e.Errorf("caps %+v and %+v", c, e.reader.Caps())
	}
	if !c.Get && !c.OneSided {
		e.Errorf("caps %+v: no way to read", c)
	}
	if c.MaxMessage < 0 {
		e.Errorf("messages of at most %d bytes", c.MaxMessage)
	}
	seen := map[string]bool{"": true}
	for _, rail := range c.Rails {
		if seen[rail] {
			e.Errorf("rails %q: one without a name or twice", c.Rails)
		}
		seen[rail] = true
	}
	if _, ok := e.peer.(rdma.Getter); ok != c.Get {
		e.Errorf("Caps.Get is %v, the peer is a Getter: %v", c.Get, ok)
	}
	if e.holder.Addr() == e.reader.Addr() {
		e.Errorf("two transports at %s", e.holder.Addr())
	}
}

func checkGetSizes(e *env) {
	for i, n := range []int{0, 1, 4095, 4096, 4097, 16 << 10, 64 << 10, 256<<10 - 1, 1 << 20, 16<<20 + 1} {
		name := fmt.Sprint("block ", n)
		content := pattern(uint64(i), n)
		e.source.put(name, blockOf{content: content})
		for _, off := range []int64{0, 1, 8192} {
			w := &want{name: name, off: off}
			if err := e.get(e.ctx, e.peer, w); err != nil {
				e.Errorf("get %d bytes: %v", n, err)
			}
			w.holds(e, content)
		}
	}
}

func checkGetOrder(e *env) {
	refusal := errors.New("refused by the test")
	e.source.put("busy", blockOf{err: fmt.Errorf("just now: %w", rdma.ErrBusy)})
	e.source.put("later", blockOf{err: fmt.Errorf("just now: %w", rdma.ErrLater)})
	e.source.put("broken", blockOf{err: errors.New("disk on fire")})
	var wants []*want
	var contents [][]byte
	for i := range 60 {
		content := pattern(uint64(i), i*1777)
		name := fmt.Sprint("block ", i)
		e.source.put(name, blockOf{content: content})
		wants = append(wants, &want{name: name})
		contents = append(contents, content)
		switch i % 6 {
		case 1:
			wants[i].name = "absent"
		case 2:
			wants[i].name = []string{"busy", "later"}[i/6%2]
		case 3:
			wants[i].refuse = refusal
		case 4:
			wants[i].name = "broken"
		}
	}
	if err := e.get(e.ctx, e.peer, wants...); err != nil {
		e.Errorf("get: %v", err)
	}
	for i, w := range wants {
		switch i % 6 {
		case 1:
			w.fails(e, rdma.ErrGone)
		case 2:
			w.fails(e, []error{rdma.ErrBusy, rdma.ErrLater}[i/6%2])
		case 3:
			w.fails(e, refusal)
		case 4:
			if w.err == nil {
				e.Errorf("get of what the source cannot read: no error")
			}
		default:
			w.holds(e, contents[i])
		}
	}
}

// checkGetMany gets the most items allowed, with the longest names allowed.
func checkGetMany(e *env) {
	var wants []*want
	for i := range rdma.MaxItems {
		name := fmt.Sprintf("%d %s", i, strings.Repeat("x", rdma.MaxName))[:rdma.MaxName]
		if i%2 == 0 {
			e.source.put(name, blockOf{content: pattern(uint64(i), 100)})
		}
		wants = append(wants, &want{name: name})
	}
	if err := e.get(e.ctx, e.peer, wants...); err != nil {
		e.Errorf("get: %v", err)
	}
	for i, w := range wants {
		if i%2 == 0 {
			w.holds(e, pattern(uint64(i), 100))
		} else {
			w.fails(e, rdma.ErrGone)
		}
	}
}

func checkGetLimits(e *env) {
	if err := e.get(e.ctx, e.peer); err != nil {
		e.Errorf("get of nothing: %v", err)
	}
	long := &want{name: strings.Repeat("x", rdma.MaxName+1)}
	if err := e.get(e.ctx, e.peer, &want{name: "a"}, long); err == nil || long.err == nil {
		e.Errorf("get of a name of %d bytes: no error", len(long.name))
	}
	many := make([]*want, rdma.MaxItems+1)
	for i := range many {
		many[i] = &want{name: "a"}
	}
	if err := e.get(e.ctx, e.peer, many...); err == nil || many[0].err == nil {
		e.Errorf("get of %d items: no error", len(many))
	}
}

func checkGetHeaders(e *env) {
	var wants []*want
	for i, n := range []int{0, 1, 100, rdma.MaxHeader} {
		name := strings.Repeat("n", i) // the first is empty
		e.source.put(name, blockOf{header: pattern(uint64(n), n), content: pattern(7, 10000)})
		wants = append(wants, &want{name: name})
	}
	if err := e.get(e.ctx, e.peer, wants...); err != nil {
		e.Errorf("get: %v", err)
	}
	for i, n := range []int{0, 1, 100, rdma.MaxHeader} {
		wants[i].holds(e, pattern(7, 10000))
		if string(wants[i].header) != string(pattern(uint64(n), n)) {
			e.Errorf("header of %d bytes came as %d or with others", n, len(wants[i].header))
		}
	}
	e.source.put("too long", blockOf{header: make([]byte, rdma.MaxHeader+1), content: pattern(7, 10)})
	w := &want{name: "too long"}
	e.get(e.ctx, e.peer, w)
	if w.err == nil {
		e.Errorf("header of %d bytes: no error", rdma.MaxHeader+1)
	}
}

func checkGetRefusedLarge(e *env) {
	refusal := errors.New("refused by the test")
	large, small := pattern(1, 12<<20), pattern(2, 5000)
	e.source.put("large", blockOf{content: large})
	e.source.put("small", blockOf{content: small})
	a, b, c := &want{name: "large", refuse: refusal}, &want{name: "small"}, &want{name: "large"}
	if err := e.get(e.ctx, e.peer, a, b, c); err != nil {
		e.Errorf("get: %v", err)
	}
	a.fails(e, refusal)
	b.holds(e, small)
	c.holds(e, large)
}

// checkGetUnwritable gets into a file that cannot be written: only that block fails.
func checkGetUnwritable(e *env) {
	content := pattern(3, 3<<20)
	e.source.put("a", blockOf{content: content})
	f := newFile(e, nil)
	ro, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		e.Fatalf("open read-only: %v", err)
	}
	defer ro.Close()
	a, b := &want{name: "a", file: ro}, &want{name: "a"}
	if err := e.get(e.ctx, e.peer, a, b); err != nil {
		e.Errorf("get: %v", err)
	}
	if a.err == nil {
		e.Errorf("get into a file that is not writable: no error")
	}
	b.holds(e, content)
}

// checkGetShortFile lends a file that has fewer bytes than announced.
func checkGetShortFile(e *env) {
	for _, n := range []int{0, 100, 100_000, 5 << 20} {
		name := fmt.Sprint(n)
		e.source.put(name, blockOf{content: pattern(4, n), size: int64(n) + 1})
		w := &want{name: name}
		e.get(e.ctx, e.peer, w)
		if w.err == nil {
			e.Errorf("get of a file of %d bytes lent as %d: no error", n, n+1)
		}
	}
	e.source.put("good", blockOf{content: pattern(5, 1000)})
	w := &want{name: "good"}
	if err := e.get(e.ctx, e.peer, w); err != nil {
		e.Errorf("get after a short file: %v", err)
	}
	w.holds(e, pattern(5, 1000))
}
