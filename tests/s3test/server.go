// Package s3test gives tests a real S3 server, and a proxy before it that fails on demand. The server is the program of
// tests/s3, or with KVFS_TEST_S3=ceph in the environment the gateway of a Ceph cluster of its own.
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
	"io"
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

	tb   testing.TB
	base string
	dir  string   // of the program of tests/s3: its buckets are directories there
	cert []string // names of two files, the certificate and the key
	ceph *ceph    // nil: the program of tests/s3

	client func() *minio.Core
	process
}

// process is a program that runs until it is killed.
type process struct {
	cmd    *exec.Cmd
	log    bytes.Buffer  // what it says. Not to be read while it runs.
	exited chan struct{} // closed when cmd has been waited for
}

// start starts the program. It ends with the test process.
func (p *process) start(cmd *exec.Cmd) error {
	if p.cmd, cmd.Stderr = cmd, &p.log; cmd.Stdout == nil {
		cmd.Stdout = &p.log
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	p.exited = exited
	go func() { // ends with the program
		cmd.Wait() // killed
		close(exited)
	}()
	return nil
}

// Kill kills the program.
func (p *process) Kill() {
	if p.exited == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.exited
}

// Start starts a server, with an empty bucket. It ends with the test. The test is skipped if the server cannot be built,
// which fails it in CI.
func Start(tb testing.TB, opts Options) *Server {
	tb.Helper()
	base := harness.NewDir(tb)
	s := &Server{tb: tb, base: base, dir: filepath.Join(base, "buckets"), Credentials: filepath.Join(base, "credentials"), URL: "http://"}
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", AccessKey, SecretKey)
	must(tb, errors.Join(os.Mkdir(s.dir, 0o700), os.Mkdir(filepath.Join(base, "meta"), 0o700), os.WriteFile(s.Credentials, []byte(text), 0o600)))
	if opts.TLS {
		s.URL = "https://"
		s.certify()
	}
	s.Address = freeAddress(tb)
	s.URL += s.Address
	if os.Getenv("KVFS_TEST_S3") == "ceph" {
		s.ceph = startCeph(tb, filepath.Join(base, "ceph"))
	}
	tb.Cleanup(func() {
		s.Kill()
		if tb.Failed() {
			tb.Logf("log of the S3 server:\n%s", s.log.String())
		}
	})
	s.Run(false)
	s.client = sync.OnceValue(s.newClient)
	must(tb, s.Client().MakeBucket(tb.Context(), Bucket, minio.MakeBucketOptions{}))
	return s
}

// freeAddress returns an address that nobody listens at. A server needs one that stays the same after Kill and Run.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(tb, err)
	defer l.Close()
	return l.Addr().String()
}

// Run starts the server after Kill, with what it had. Read-only, it refuses every change.
func (s *Server) Run(readOnly bool) {
	s.tb.Helper()
	if s.ceph != nil {
		s.ceph.gateway(s, readOnly)
		return
	}
	args := []string{"-listen", s.Address, "-dir", s.dir, fmt.Sprintf("-read-only=%v", readOnly)}
	if unix.Setxattr(s.dir, "user.kvfs", []byte("1"), 0) != nil {
		args = append(args, "-sidecar", filepath.Join(s.base, "meta"))
	}
	if s.cert != nil {
		args = append(args, "-cert", s.cert[0], "-key", s.cert[1])
	}
	cmd := exec.Command(binary(s.tb), args...)
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+AccessKey, "AWS_SECRET_ACCESS_KEY="+SecretKey)
	r, w, err := os.Pipe()
	if err == nil {
		cmd.Stdout = w
		err = s.start(cmd)
		w.Close()
	}
	if err != nil {
		s.tb.Fatal(err)
	}
	ready := make(chan bool, 1)
	go func() { // ends with the server
		defer r.Close()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if lines.Text() == "ready" {
				ready <- true
			}
		}
		close(ready)
	}()
	if !<-ready {
		s.Kill()
		s.tb.Fatalf("the S3 server ended: %s", s.log.String())
	}
}

// Signal sends a signal to the server. After SIGSTOP it returns when the server does nothing any more.
func (s *Server) Signal(sig syscall.Signal) {
	s.tb.Helper()
	if sig == syscall.SIGSTOP {
		harness.Freeze(s.tb, s.cmd.Process.Pid)
		return
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatal(err)
	}
}

// Ceph reports whether the server is the gateway of Ceph.
func (s *Server) Ceph() bool { return s.ceph != nil }

// Client returns a client of the server, past the code under test.
func (s *Server) Client() *minio.Core { return s.client() }

func (s *Server) newClient() *minio.Core {
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

// Names returns the names of the objects below a prefix of the bucket, without it.
func (s *Server) Names(prefix string) (names []string) {
	s.tb.Helper()
	prefix += "/"
	for o := range s.Client().Client.ListObjects(s.tb.Context(), Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			s.tb.Fatal(o.Err)
		}
		names = append(names, strings.TrimPrefix(o.Key, prefix))
	}
	return names
}

// Get returns an object of the bucket.
func (s *Server) Get(name string) []byte {
	s.tb.Helper()
	object, _, _, err := s.Client().GetObject(s.tb.Context(), Bucket, name, minio.GetObjectOptions{})
	if err != nil {
		s.tb.Fatalf("get %s: %v", name, err)
	}
	defer object.Close()
	data, err := io.ReadAll(object)
	if err != nil {
		s.tb.Fatalf("get %s: %v", name, err)
	}
	return data
}

// Put stores an object in the bucket.
func (s *Server) Put(name string, data []byte) {
	s.tb.Helper()
	if _, err := s.Client().PutObject(s.tb.Context(), Bucket, name, bytes.NewReader(data), int64(len(data)), "", "", minio.PutObjectOptions{DisableContentSha256: true}); err != nil {
		s.tb.Fatalf("put %s: %v", name, err)
	}
}

// Remove removes an object of the bucket.
func (s *Server) Remove(name string) {
	s.tb.Helper()
	if err := s.Client().RemoveObject(s.tb.Context(), Bucket, name, minio.RemoveObjectOptions{}); err != nil {
		s.tb.Fatalf("remove %s: %v", name, err)
	}
}

// Copy copies the objects below a prefix of the bucket below another one, as programs for S3 do.
func (s *Server) Copy(from, to string) {
	s.tb.Helper()
	for _, name := range s.Names(from) {
		s.Put(to+"/"+name, s.Get(from+"/"+name))
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
