package cluster

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestPlainError shows that what an operator reads of a failed call is its cause.
func TestPlainError(t *testing.T) {
	refused := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 10.97.1.1:7946: connect: connection refused"`)
	for _, c := range []struct {
		err  error
		want string
	}{
		{refused, "dial tcp 10.97.1.1:7946: connect: connection refused"},
		{fmt.Errorf("ask: %w", refused), "dial tcp 10.97.1.1:7946: connect: connection refused"},
		{status.Error(codes.ResourceExhausted, "too many calls"), "too many calls"},
		{errors.New("short read"), "short read"},
	} {
		if got := plainError(c.err); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
}
