package location

import "unsafe"

// sparse is a map that frees memory; Go's maps never do.
type sparse[K comparable, V any] struct {
	m    map[K]V
	peak int // entries since m was made
}

// sparseMin is the size below which freeing is not worth it.
const sparseMin = 64

func (s *sparse[K, V]) get(k K) (V, bool) {
	v, ok := s.m[k]
	return v, ok
}

func (s *sparse[K, V]) set(k K, v V) {
	if s.m == nil {
		s.m = map[K]V{}
	}
	s.m[k] = v
	s.peak = max(s.peak, len(s.m))
}

func (s *sparse[K, V]) remove(k K) {
	delete(s.m, k)
	switch n := len(s.m); {
	case n == 0:
		s.m, s.peak = nil, 0
	case s.peak > sparseMin && n < s.peak/4:
		m := make(map[K]V, n)
		for k, v := range s.m {
			m[k] = v
		}
		s.m, s.peak = m, n
	}
}

// bytes returns about the memory of the map. Go's maps have room for up to twice their entries, and
// a byte more for each.
func (s *sparse[K, V]) bytes() int64 {
	var k K
	var v V
	return 2 * int64(s.peak) * int64(unsafe.Sizeof(k)+unsafe.Sizeof(v)+1)
}
