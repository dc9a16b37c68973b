package directio

// AlignUp returns n rounded up to a multiple of Alignment. n must be at least 0, and at most the
// largest multiple of Alignment in an int64.
func AlignUp(n int64) int64 { return (n + Alignment - 1) &^ (Alignment - 1) }
