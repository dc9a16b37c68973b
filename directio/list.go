package directio

// list is a queue of values that carry their own links. So each value can leave from the middle
// without a search.
type list[T any] struct{ first, last *node[T] }

// node links a value into one list at a time.
type node[T any] struct {
	value      T
	next, prev *node[T]
}

// push appends v, whose links are n.
func (l *list[T]) push(v T, n *node[T]) {
	*n = node[T]{value: v, prev: l.last}
	if l.last == nil {
		l.first = n
	} else {
		l.last.next = n
	}
	l.last = n
}

// remove takes n out of l. n must be in l.
func (l *list[T]) remove(n *node[T]) {
	if n.prev == nil {
		l.first = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.last = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.next, n.prev = nil, nil
}
