package lane

// fifo is a queue in a slice.
type fifo[T any] struct {
	items  []T
	head   int
	popped uint64 // in all
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

// rest are the items, first the one that is popped next. It is valid until the queue changes.
func (q *fifo[T]) rest() []T { return q.items[q.head:] }

func (q *fifo[T]) push(x T) { q.items = append(q.items, x) }

func (q *fifo[T]) pushFront(x T) {
	if q.head == 0 {
		q.items = append([]T{x}, q.items...)
		return
	}
	q.head--
	q.items[q.head] = x
}

func (q *fifo[T]) front() T { return q.items[q.head] }

func (q *fifo[T]) pop() T {
	var zero T
	x := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	q.popped++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head > 1024 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return x
}
