package driver

// Failing is a Tier that may be away for good: what it missed need not be offered to it again.
type Failing interface {
	// Failed reports whether the tier is away until it is opened again. It neither blocks nor calls the engine.
	Failed() bool
}
