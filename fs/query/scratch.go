package query

import (
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
)

// maxRetained bounds the bytes that a scratch may hold between requests. It is enough for requests
// of 50,000 names.
const maxRetained = 4 << 20

// scratch is the memory for answering one request. It is reused, so large requests leave no
// garbage.
type scratch struct {
	as     *event.Viewer // the user of the request
	by     state.Process // that asks
	read   reader
	q      query
	items  [][]byte
	arena  []byte        // paths of a batch
	paths  [][]byte      // batch
	places []names.Place // batch
	codes  []byte        // batch
	files  [][]byte      // to be promoted
	states []byte        // of all that is asked for
	out    []byte        // answer
}

// take returns a scratch for one request of a user.
func (s *Service) take(as *event.Viewer) *scratch {
	sc, ok := s.pool.Get().(*scratch)
	if !ok {
		sc = &scratch{paths: make([][]byte, 0, batch), places: make([]names.Place, batch), codes: make([]byte, batch)}
	}
	sc.as = as
	return sc
}

// give takes a scratch back, and forgets the request.
func (s *Service) give(sc *scratch) {
	held := cap(sc.items)*24 + cap(sc.arena) + cap(sc.files)*24 + cap(sc.states) + cap(sc.out)
	if held > maxRetained {
		return
	}
	clear(sc.items)
	clear(sc.files[:cap(sc.files)])
	clear(sc.paths[:cap(sc.paths)])
	sc.read.reset(nil)
	sc.q = query{}
	s.pool.Put(sc)
}

// bytesOf returns n zero bytes in the memory of *buf.
func bytesOf(buf *[]byte, n int) []byte {
	if cap(*buf) < n {
		*buf = make([]byte, n)
		return *buf
	}
	*buf = (*buf)[:n]
	clear(*buf)
	return *buf
}
