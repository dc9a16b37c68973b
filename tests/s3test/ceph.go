package s3test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// ceph is a Ceph cluster of one monitor and one OSD, of the programs in Debian's packages, without a manager.
type ceph struct {
	tb   testing.TB
	dir  string
	conf string
}

// cephConf is the configuration: %[1]s is the directory, %[2]s and %[3]s are addresses of the monitor. All keys are in one
// file.
const cephConf = `[global]
fsid = 6b766673-0000-4000-8000-000000000000
mon host = [v2:%[2]s,v1:%[3]s]
mon initial members = a
public addr = 127.0.0.1
keyring = %[1]s/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
bluestore block size = 17179869184
osd memory target = 939524096
osd max object name len = 2048
run dir = %[1]s
admin socket =
crash dir = %[1]s
log file = %[1]s/$name.log
mon data = %[1]s/mon
osd data = %[1]s/osd
rgw data = %[1]s/rgw
`

// startCeph starts a cluster with a user, whose keys are AccessKey and SecretKey. It ends with the test. The test is skipped
// if the programs are not there.
func startCeph(tb testing.TB, dir string) *ceph {
	tb.Helper()
	for _, program := range []string{"ceph", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin"} {
		if _, err := exec.LookPath(program); err != nil {
			harness.Skip(tb, "no Ceph: %v", err)
		}
	}
	c := &ceph{tb: tb, dir: dir, conf: filepath.Join(dir, "ceph.conf")}
	v2, v1 := freeAddress(tb), freeAddress(tb)
	for _, sub := range []string{"mon", "osd", "rgw"} {
		must(tb, os.MkdirAll(filepath.Join(dir, sub), 0o700))
	}
	must(tb, os.WriteFile(c.conf, fmt.Appendf(nil, cephConf, dir, v2, v1), 0o600))
	keyring, monmap := filepath.Join(dir, "keyring"), filepath.Join(dir, "monmap")
	c.do("ceph-authtool", "--create-keyring", keyring)
	for _, who := range []string{"mon.", "client.admin", "osd.0"} {
		c.do("ceph-authtool", keyring, "--gen-key", "-n", who, "--cap", "mon", "allow *", "--cap", "osd", "allow *")
	}
	c.do("monmaptool", "--create", "--fsid", "6b766673-0000-4000-8000-000000000000", "--addv", "a", "[v2:"+v2+",v1:"+v1+"]", monmap)
	c.do("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
	c.serve("ceph-mon", "-f", "-i", "a")
	const id = "6b766673-0000-4000-8000-000000000001"
	c.do("ceph", "osd", "new", id)
	c.do("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", id)
	c.serve("ceph-osd", "-f", "-i", "0")
	c.do("radosgw-admin", "user", "create", "--uid", "kvfs", "--display-name", "kvfs", "--access-key", AccessKey, "--secret-key", SecretKey)
	return c
}

// command returns a program that uses the cluster.
func (c *ceph) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "CEPH_ARGS=--conf "+c.conf)
	return cmd
}

// do runs a program to its end.
func (c *ceph) do(program string, args ...string) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(c.tb.Context(), harness.Deadline)
	defer cancel()
	if out, err := c.command(ctx, program, args...).CombinedOutput(); err != nil {
		c.tb.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// serve starts a daemon of the cluster. It ends with the test.
func (c *ceph) serve(program string, args ...string) {
	c.tb.Helper()
	p := &process{}
	if err := p.start(c.command(context.Background(), program, args...)); err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() {
		p.Kill()
		if c.tb.Failed() {
			c.tb.Logf("%s:\n%s", program, p.log.String())
		}
	})
}

// gateway starts the gateway of a server. Read-only, its user may change nothing.
func (c *ceph) gateway(s *Server, readOnly bool) {
	c.tb.Helper()
	mask := "read,write,delete"
	if readOnly {
		mask = "read"
	}
	c.do("radosgw-admin", "user", "modify", "--uid", "kvfs", "--op-mask", mask)
	frontend, client := "beast endpoint="+s.Address, http.DefaultClient
	if s.cert != nil {
		frontend = fmt.Sprintf("beast ssl_endpoint=%s ssl_certificate=%s ssl_private_key=%s", s.Address, s.cert[0], s.cert[1])
		client = &http.Client{Transport: trusting(c.tb, s.CAFile)}
	}
	if err := s.start(c.command(context.Background(), "radosgw", "-f", "-n", "client.admin", "--rgw-frontends", frontend)); err != nil {
		c.tb.Fatal(err)
	}
	harness.Poll(c.tb, "the gateway answers", func() bool {
		answer, err := client.Get(s.URL)
		if err != nil {
			select {
			case <-s.exited:
				c.tb.Fatal(errors.Join(errors.New("the gateway ended: "+s.log.String()), err))
			default:
			}
			return false
		}
		answer.Body.Close()
		return true
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
