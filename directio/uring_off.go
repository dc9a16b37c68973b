//go:build !giouring

package directio

// openUring fails: this build has no io_uring.
func openUring(Options) (Engine, error) { return nil, errNoUring }
