package exit

import (
	"errors"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
)

// TestErrorCodes shows how errors get their exit codes and lines.
func TestErrorCodes(t *testing.T) {
	plain := errors.New("boom")
	both := errors.Join(plain, errors.New("bang"))
	for _, tc := range []struct {
		err   error
		code  int
		lines int
	}{
		{plain, Runtime, 1},
		{both, Runtime, 2},
		{With(Mount, plain), Mount, 1},
		{With(Mount, both), Mount, 2},
		{&config.Error{Err: plain}, Config, 1},
	} {
		if code, lines := Code(tc.err), Each(tc.err); code != tc.code || len(lines) != tc.lines {
			t.Errorf("%v: code %d, %d lines; want %d, %d", tc.err, code, len(lines), tc.code, tc.lines)
		}
	}
	if With(Mount, nil) != nil {
		t.Error("withCode(nil) is not nil")
	}
}
