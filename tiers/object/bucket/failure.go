package bucket

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/kvfs/kvfs/tiers/block"
)

// failure is what a request came to.
type failure struct {
	what  string
	kind  error
	code  string // of S3, if the server answered
	again bool   // another try may end better; it counts against the server
}

// Error says what happened and the kind.
func (f *failure) Error() string { return f.what + ": " + f.kind.Error() }

// Unwrap returns the kind.
func (f *failure) Unwrap() error { return f.kind }

// again reports whether another try may end better.
func again(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.again
}

// code returns the code of S3 of an error; "" if it has none.
func code(err error) string {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	return ""
}

// judge turns an error of the library into a failure. write says that the request was to change something.
func (b *Bucket) judge(err error, write bool) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok && r.Code != "" {
		f := b.refusal(r, write)
		f.code = r.Code
		return f
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &failure{what: fmt.Sprintf("the certificate of %s: %v (see ca_file)", b.opts.Endpoint, e.Err), kind: block.ErrInvalid}
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return &failure{what: fmt.Sprintf("endpoint %s cannot be reached: %v", b.opts.Endpoint, e.Err), kind: block.ErrUnavailable, again: true}
	}
	return &failure{what: err.Error(), kind: block.ErrUnavailable, again: true}
}

// refusal is judge for an error that the server has sent.
func (b *Bucket) refusal(r minio.ErrorResponse, write bool) *failure {
	said := fmt.Sprintf("%s (%d, %s)", r.Message, r.StatusCode, r.Code)
	switch r.Code {
	case minio.NoSuchKey, minio.NoSuchUpload:
		return &failure{what: "no such object", kind: block.ErrNotFound}
	case minio.NoSuchBucket:
		return &failure{what: fmt.Sprintf("bucket %s does not exist", b.opts.Bucket), kind: block.ErrUnavailable, again: true}
	case minio.InvalidAccessKeyID, minio.SignatureDoesNotMatch, "InvalidToken", "ExpiredToken", "TokenRefreshRequired":
		return &failure{what: fmt.Sprintf("the credentials (%s) are wrong or have expired: %s", b.opts.Credentials, said), kind: block.ErrInvalid}
	case minio.RequestTimeTooSkewed:
		return &failure{what: "the clock of this machine or of the server is wrong: " + said, kind: block.ErrInvalid}
	case "SlowDown", "RequestTimeout", "InternalError", "BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch":
		return &failure{what: said, kind: block.ErrUnavailable, again: true}
	case minio.PreconditionFailed:
		return &failure{what: "the object was replaced while it was read", kind: block.ErrUnavailable}
	}
	s := r.StatusCode
	denied := s == http.StatusForbidden || s == http.StatusMethodNotAllowed || r.Code == minio.AccessDenied
	switch {
	case s == http.StatusTooManyRequests || s == http.StatusRequestTimeout || s >= 500:
		return &failure{what: said, kind: block.ErrUnavailable, again: true}
	case denied && write:
		return &failure{what: "the credentials do not allow changes: " + said, kind: block.ErrReadOnly}
	case denied:
		return &failure{what: fmt.Sprintf("the credentials (%s) do not allow reads: %s", b.opts.Credentials, said), kind: block.ErrInvalid}
	}
	return &failure{what: said, kind: block.ErrInvalid}
}
