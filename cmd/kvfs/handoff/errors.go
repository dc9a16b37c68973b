package handoff

import "errors"

// Kinds of failure. Errors of this package wrap them.
var (
	ErrNoOwner   = errors.New("no owner is serving")
	ErrServing   = errors.New("another owner is serving")
	ErrPlace     = errors.New("not a safe place for a socket")
	ErrStranger  = errors.New("neither root nor the same user")
	ErrVersion   = errors.New("different version of the protocol")
	ErrMalformed = errors.New("malformed message")
	ErrRefused   = errors.New("the owner refused") // with the owner's reason
	ErrEnded     = errors.New("the connection ended")
)
