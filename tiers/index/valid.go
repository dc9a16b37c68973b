package index

// End returns a number above all those in use.
func (x *Index) End() ID { return ID(min(x.used, 1<<32-1)) }

// Valid reports whether id is in use, so that At may be called with it.
func (x *Index) Valid(id ID) bool {
	return uint64(id) < x.used && x.entries[id>>entryBits][id%entryChunk].state != free
}
