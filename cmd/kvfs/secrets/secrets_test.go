package secrets

import (
	"strings"
	"testing"
)

// TestKeyArg shows where a key is read from.
func TestKeyArg(t *testing.T) {
	for _, tc := range []struct{ arg, in, want string }{
		{"k", "x\n", "k"}, {"-", "x\ny\n", "x"}, {"-", " x ", "x"}, {"-", "", ""}, {"-", "\nx\n", ""}, {"-", strings.Repeat(" ", 2*maxKeyLine) + "x\n", ""},
	} {
		if got, err := keyArg(strings.NewReader(tc.in), tc.arg); got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("%q with %q: got %q, %v, want %q", tc.arg, tc.in, got, err, tc.want)
		}
	}
}
