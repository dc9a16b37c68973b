package query

// The engine is given so many paths at a time to bring into memory, so that what is held of them
// is bounded. For most requests that is all of them, and it can keep them in order.
const (
	maxFiles     = 1 << 16
	maxFileBytes = 16 << 20 // of paths
)

// files gathers the paths of what is to be brought into memory.
type files struct {
	sc   *scratch
	give func(paths [][]byte) // is called with many at a time, which are gone afterwards
}

// newHint returns files that the engine is to promote without waiting for it.
func (s *Service) newHint(sc *scratch) *files {
	return &files{sc: sc, give: func(paths [][]byte) { s.engine.Hint(sc.as, sc.q.request, paths) }}
}

// add adds the files of an item, one for each rank.
func (f *files) add(n *names, l *layout, item, ranks int) {
	sc := f.sc
	if len(sc.files) == 0 {
		sc.arena = sc.arena[:0]
	}
	var path []byte
	for rank := range ranks {
		path, sc.arena, _ = n.appendPath(sc.arena, l, item, rank)
		if sc.files = append(sc.files, path); len(sc.files) == maxFiles || len(sc.arena) >= maxFileBytes {
			f.flush()
		}
	}
}

// flush gives away what there is.
func (f *files) flush() {
	if len(f.sc.files) > 0 {
		f.give(f.sc.files)
	}
	f.sc.arena, f.sc.files = f.sc.arena[:0], f.sc.files[:0]
}
