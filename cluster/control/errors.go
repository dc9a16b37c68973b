package control

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/rdma"
)

// ErrEnded says that the peer is alive and ended the call itself, because another call
// replaced it.
var ErrEnded = errors.New("ended by the peer")

// Gap reports whether a peer ended a feed because its log has gone past the caller.
func Gap(err error) bool { return status.Code(err) == codes.OutOfRange }

// Error converts the error of a call to one of the kinds of package rdma, or returns the
// error of ctx.
func Error(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	kind := rdma.ErrUnavailable
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case codes.Canceled:
		return fmt.Errorf("%w: %w: %w", kind, ErrEnded, err)
	case codes.NotFound:
		kind = rdma.ErrGone
	case codes.Aborted:
		kind = rdma.ErrBusy
	case codes.InvalidArgument, codes.Internal, codes.ResourceExhausted, codes.DataLoss, codes.Unimplemented, codes.OutOfRange:
		kind = rdma.ErrProtocol
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// Status converts an error of this node to the status that the peer gets.
func Status(err error) error {
	code := codes.Unavailable
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rdma.ErrGone):
		code = codes.NotFound
	case errors.Is(err, rdma.ErrBusy):
		code = codes.Aborted
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}
