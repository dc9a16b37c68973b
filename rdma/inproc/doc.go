// Package inproc is a transport between nodes of one process, for tests: the contract of rdma
// without a network. Tests trigger its faults.
//
//	n := inproc.NewNetwork()
//	a, err := n.Transport("a", source)
//	b, err := n.Transport("b", nil)
//	p, err := b.Connect("a")
//	n.Cut("a", "b") // b's Get from a fails, and so do all calls until Heal
//
// Bytes go from file to file through a buffer, in the goroutine of the caller. There are no other
// goroutines, no timers and no random events besides those faults.
package inproc
