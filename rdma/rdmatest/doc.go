// Package rdmatest is the conformance suite of rdma.Transport.
//
//	func TestConformance(t *testing.T) {
//		rdmatest.Run(t, func(testing.TB) *rdmatest.Harness { return &rdmatest.Harness{Open: open} })
//	}
//
// Each check opens transports of its own. What a transport cannot do by its Caps, or a
// Harness has no fault for, is not checked: those parts are skipped and say so. The
// package's own tests run the suite over broken transports and show that it finds each
// fault.
package rdmatest
