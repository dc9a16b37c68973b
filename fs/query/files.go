package query

// The engine gets at most this many paths at a time to promote, which bounds the memory they take.
// For most requests one call gets all, and the engine can keep them in order.
const (
	maxFiles     = 1 << 16
	maxFileBytes = 16 << 20 // of paths
)

// files gathers the paths of files to promote.
type files struct {
	sc   *scratch
	give func(paths [][]byte) // is called with many paths at a time; they are gone afterwards
}

// newHint returns files for the engine to promote. Nothing waits for it.
func (s *Service) newHint(sc *scratch) *files {
	return &files{sc: sc, give: func(paths [][]byte) { s.engine.Hint(sc.as, sc.q.request, paths) }}
}

// add adds the files of an item, one for each rank.
func (f *files) add(n *nameList, l *layout, item, ranks int) {
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

// flush gives away the gathered paths.
func (f *files) flush() {
	if len(f.sc.files) > 0 {
		f.give(f.sc.files)
	}
	f.sc.arena, f.sc.files = f.sc.arena[:0], f.sc.files[:0]
}
