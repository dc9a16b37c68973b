// Package rdmatest is the conformance suite of rdma.Transport.
//
//	func TestConformance(t *testing.T) {
//		rdmatest.Run(t, func(testing.TB) *rdmatest.Harness { return &rdmatest.Harness{Open: open} })
//	}
//
// Each check opens transports of its own. What a transport cannot do by its Caps is
// not checked. The package's own tests run the suite over broken transports and
// show that it finds each fault.
package rdmatest
