// Package inproc is a transport between nodes of one process, for tests: the
// contract of rdma without a network, and with faults that come when they are told
// to.
//
//	n := inproc.NewNetwork()
//	a, err := n.Transport("a", source)
//	b, err := n.Transport("b", nil)
//	p, err := b.Connect("a")
//	n.Cut("a", "b") // what b is getting from a fails, and so does all until Heal
//
// Bytes go from file to file through a buffer in the goroutine of the caller. There
// is no goroutine, timer or chance in it besides those.
package inproc
