// Package s3test gives tests a real S3 server, the program of tests/s3, and a proxy before it that fails on demand.
//
// A test package that uses it has a TestMain that returns harness.Main(m): SIGTERM then ends the servers and removes their
// files. They end with the test in any case.
package s3test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// The credentials of every server.
const (
	AccessKey = "AKIAKVFSTESTONLY"
	SecretKey = "kvfs-test-secret-which-no-log-may-show"
)

// Bucket is the bucket that every server has.
const Bucket = "kvfs-test"

// Options say what kind of server a test needs.
type Options struct {
	TLS bool // with a certificate of a CA of its own, see Server.CAFile
}

// Server is a running server.
type Server struct {
	Address     string // host:port
	URL         string // with http or https
	CAFile      string // the certificate of the CA; empty without TLS
	Credentials string // a file in the format of ~/.aws/credentials
	Dir         string // the buckets are directories in it

	tb     testing.TB
	base   string
	cert   []string // flags
	cmd    *exec.Cmd
	log    bytes.Buffer
	exited chan struct{} // closed when cmd has been waited for
}

// Start starts a server, with an empty bucket. It ends with the test. The test is skipped if the server cannot be built,
// which fails it in CI.
func Start(tb testing.TB, opts Options) *Server {
	tb.Helper()
	base := harness.NewDir(tb)
	s := &Server{tb: tb, base: base, Dir: filepath.Join(base, "buckets"), Credentials: filepath.Join(base, "credentials"), URL: "http://"}
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", AccessKey, SecretKey)
	if err := errors.Join(os.Mkdir(s.Dir, 0o700), os.Mkdir(filepath.Join(base, "meta"), 0o700), os.WriteFile(s.Credentials, []byte(text), 0o600)); err != nil {
		tb.Fatal(err)
	}
	if opts.TLS {
		s.URL = "https://"
		s.certify()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // the server needs a port that stays the same after Kill and Run
	if err != nil {
		tb.Fatal(err)
	}
	s.Address = l.Addr().String()
	s.URL += s.Address
	l.Close()
	tb.Cleanup(func() {
		s.Kill()
		if tb.Failed() {
			tb.Logf("log of the S3 server:\n%s", s.log.String())
		}
	})
	s.Run(false)
	if err := s.Client().MakeBucket(tb.Context(), Bucket, minio.MakeBucketOptions{}); err != nil {
		tb.Fatal(err)
	}
	return s
}

// Run starts the server after Kill, with what it had. Read-only, it refuses every change.
func (s *Server) Run(readOnly bool) {
	s.tb.Helper()
	args := []string{"-listen", s.Address, "-dir", s.Dir, fmt.Sprintf("-read-only=%v", readOnly)}
	if unix.Setxattr(s.Dir, "user.kvfs", []byte("1"), 0) != nil {
		args = append(args, "-sidecar", filepath.Join(s.base, "meta"))
	}
	s.cmd = exec.Command(binary(s.tb), append(args, s.cert...)...)
	s.cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+AccessKey, "AWS_SECRET_ACCESS_KEY="+SecretKey)
	s.cmd.Stderr = &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		s.tb.Fatal(err)
	}
	s.exited = make(chan struct{})
	ready := make(chan bool, 1)
	go func() { // ends with the server
		defer close(s.exited)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == "ready" {
				ready <- true
			}
		}
		s.cmd.Wait() // killed
		close(ready)
	}()
	if !<-ready {
		s.tb.Fatalf("the S3 server ended: %s", s.log.String())
	}
}

// Signal sends a signal to the server.
func (s *Server) Signal(sig syscall.Signal) {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatal(err)
	}
}

// Kill kills the server.
func (s *Server) Kill() {
	if s.exited == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.exited
}

// Client returns a client of the server, past the code under test.
func (s *Server) Client() *minio.Core {
	s.tb.Helper()
	opts := minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: "us-east-1", BucketLookup: minio.BucketLookupPath}
	if s.CAFile != "" {
		opts.Secure, opts.Transport = true, trusting(s.tb, s.CAFile)
	}
	c, err := minio.NewCore(s.Address, &opts)
	if err != nil {
		s.tb.Fatal(err)
	}
	return c
}

// Copy copies the objects below a prefix of the bucket below another one, as programs for S3 do.
func (s *Server) Copy(tb testing.TB, from, to string) {
	tb.Helper()
	c := s.Client().Client
	for o := range c.ListObjects(tb.Context(), Bucket, minio.ListObjectsOptions{Prefix: from + "/"}) {
		if o.Err != nil {
			tb.Fatal(o.Err)
		}
		object, err := c.GetObject(tb.Context(), Bucket, o.Key, minio.GetObjectOptions{})
		if err == nil {
			_, err = c.PutObject(tb.Context(), Bucket, to+strings.TrimPrefix(o.Key, from), object, o.Size, minio.PutObjectOptions{})
			object.Close()
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

var built struct {
	once sync.Once
	path string
	err  error
}

// binary builds the server once for each test process. The cache of go build makes all but the first of them quick.
func binary(tb testing.TB) string {
	tb.Helper()
	root := harness.Root(tb)
	built.once.Do(func() { built.path, built.err = build(root) })
	if built.err != nil && os.Getenv("CI") == "" {
		harness.Skip(tb, "the S3 server cannot be built: %v", built.err)
	} else if built.err != nil {
		tb.Fatal(built.err)
	}
	return built.path
}

func build(root string) (string, error) {
	dir, err := harness.ProcessDir("s3")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "s3")
	ctx, cancel := context.WithTimeout(context.Background(), 10*harness.Deadline)
	defer cancel()
	quick := "-gcflags=github.com/...=-N -l -dwarf=false" // a third less to compile
	module := filepath.Join(root, "tests", "s3")
	// One at a time: several that begin with an empty cache would each compile all of it.
	cmd := exec.CommandContext(ctx, "flock", module, "go", "build", "-C", module, quick, "-o", path, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return path, nil
}
