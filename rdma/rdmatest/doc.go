// Package rdmatest is the conformance suite of rdma.Transport.
//
//	func TestConformance(t *testing.T) {
//		rdmatest.Run(t, func(testing.TB) *rdmatest.Harness { return &rdmatest.Harness{Open: open} })
//	}
//
// Each check opens its own transports. Parts that a transport cannot do by its Caps, or for which a
// Harness has no fault, are skipped and say so.
package rdmatest
