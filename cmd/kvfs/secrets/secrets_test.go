package secrets

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/pki"
)

// TestTimeLeft shows how validity reads.
func TestTimeLeft(t *testing.T) {
	dir := t.TempDir()
	if err := pki.CreateCA(dir, 100*time.Hour); err != nil {
		t.Fatal(err)
	}
	certs, err := pki.ReadCertificates(filepath.Join(dir, pki.CAFile))
	if err != nil {
		t.Fatal(err)
	}
	end := certs[0].NotAfter
	for before, want := range map[time.Duration]string{
		-time.Second: "expired", 47 * time.Hour: "47 hours left", 72 * time.Hour: "3 days left", 200 * time.Hour: "not yet valid",
	} {
		if got := timeLeft(certs[0], end.Add(-before)); got != want {
			t.Errorf("%v before the end: %q, want %q", before, got, want)
		}
	}
}

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
