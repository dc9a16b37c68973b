package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/object/pack"
)

const (
	s3Bucket, s3Key, s3Secret = "kvfs-bench", "AKIAKVFSBENCH", "of-a-server-on-loopback"
	// s3PartBytes is part_size, which the client's reads have, too.
	s3PartBytes = 8 * mib
)

// s3Server is the S3 server of tests/s3, with one bucket in a directory under -shm, and a client of it that knows
// nothing of kvfs.
type s3Server struct {
	dir, address, credentials string

	client *minio.Core
	cmd    *exec.Cmd
	log    tail
	read   chan struct{} // closed when all that the server printed was read
}

// startS3 builds and starts a server. The caller must stop it.
func (b *bench) startS3(ctx context.Context) (s *s3Server, err error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(b.workDir, "s3.bin")
	module := filepath.Join(root, "tests", "s3")
	args := []string{module, "go", "build", "-C", module, "-o", program} // flock: one compiles, others wait
	if b.config.quick {
		args = append(args, "-gcflags=github.com/...=-N -l -dwarf=false") // as tests/s3test: less to compile
	}
	build := exec.CommandContext(ctx, "flock", append(args, ".")...)
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", build.Args, err, out)
	}
	s = &s3Server{dir: filepath.Join(b.shmDir, "s3"), log: tail{echo: b.config.verbose}}
	s.credentials = filepath.Join(s.dir, "credentials")
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	text := "[default]\naws_access_key_id = " + s3Key + "\naws_secret_access_key = " + s3Secret + "\n"
	if err := errors.Join(os.MkdirAll(s.buckets(), 0o700), os.Mkdir(s.side(), 0o700), os.WriteFile(s.credentials, []byte(text), 0o600)); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // the server takes no port 0
	if err != nil {
		return nil, err
	}
	s.address = l.Addr().String()
	l.Close()
	if err := s.start(program); err != nil {
		return nil, err
	}
	transport, err := minio.DefaultTransport(false)
	if err != nil {
		return nil, err
	}
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 64, 64 // as kvfs has
	transport.WriteBufferSize = 64 * kib
	s.client, err = minio.NewCore(s.address, &minio.Options{Creds: credentials.NewStaticV4(s3Key, s3Secret, ""), Region: "us-east-1",
		BucketLookup: minio.BucketLookupPath, Transport: transport})
	if err != nil {
		return nil, err
	}
	return s, s.client.MakeBucket(ctx, s3Bucket, minio.MakeBucketOptions{})
}

func (s *s3Server) buckets() string { return filepath.Join(s.dir, "buckets") }
func (s *s3Server) side() string    { return filepath.Join(s.dir, "side") }

// start returns when the server listens.
func (s *s3Server) start(program string) error {
	args := []string{"-listen", s.address, "-dir", s.buckets()}
	if unix.Setxattr(s.buckets(), "user.kvfs", []byte("1"), 0) != nil { // a tmpfs has them since Linux 6.6
		args = append(args, "-sidecar", s.side())
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(plainEnv(), "AWS_ACCESS_KEY_ID="+s3Key, "AWS_SECRET_ACCESS_KEY="+s3Secret)
	cmd.Stderr = &s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	s.cmd, s.read = cmd, make(chan struct{})
	ready := make(chan bool, 1)
	go func() { // ends with the server
		defer close(s.read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == "ready" {
				ready <- true
			}
		}
		close(ready)
	}()
	if !<-ready {
		return fmt.Errorf("the S3 server ended%s", s.log.quote())
	}
	return nil
}

// stop ends the server and removes its objects.
func (s *s3Server) stop() error {
	if s.cmd != nil {
		s.cmd.Process.Kill() // what it has is removed
		<-s.read
		s.cmd.Wait()
	}
	return os.RemoveAll(s.dir)
}

// clear removes the objects below a prefix, past the server, which keeps nothing about them.
func (s *s3Server) clear(prefix string) error {
	return errors.Join(os.RemoveAll(filepath.Join(s.buckets(), s3Bucket, prefix)), os.RemoveAll(filepath.Join(s.side(), s3Bucket, prefix)))
}

// flag is the flag of a mount whose tier is below a prefix, with further keys.
func (s *s3Server) flag(prefix string, keys ...string) string {
	return strings.Join(append([]string{"url=s3://" + s3Bucket + "/" + prefix, "endpoint=http://" + s.address, "credentials=file",
		"credentials_file=" + s.credentials, fmt.Sprintf("part_size=%dMiB", s3PartBytes/mib), "open_deadline=30s"}, keys...), ",")
}

// get reads a range in parallel parts, as kvfs does.
func (s *s3Server) get(ctx context.Context, key string, offset int64, dst []byte) error {
	g, ctx := errgroup.WithContext(ctx)
	for part := range slices.Chunk(dst, s3PartBytes) {
		from := offset
		offset += int64(len(part))
		g.Go(func() error {
			var opts minio.GetObjectOptions
			if err := opts.SetRange(from, from+int64(len(part))-1); err != nil {
				return err
			}
			body, _, _, err := s.client.GetObject(ctx, s3Bucket, key, opts)
			if err != nil {
				return err
			}
			_, err = io.ReadFull(body, part)
			return errors.Join(err, body.Close())
		})
	}
	return g.Wait()
}

// put stores an object with one request and the kind of checksum that kvfs sends.
func (s *s3Server) put(ctx context.Context, key string, data []byte) error {
	sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
	_, err := s.client.PutObject(ctx, s3Bucket, key, bytes.NewReader(data), int64(len(data)), "", "", minio.PutObjectOptions{
		DisableContentSha256: true, UserMetadata: map[string]string{"X-Amz-Checksum-Crc32c": base64.StdEncoding.EncodeToString(sum)}})
	return err
}

// extent is where the data of a block is in the bucket.
type extent struct {
	key    string
	offset int64
	bytes  int64
}

// extents reads the index of each object below a prefix and returns the blocks, by path, and the number of objects.
func (s *s3Server) extents(ctx context.Context, prefix string) (map[string]extent, int, error) {
	out, objects := map[string]extent{}, 0
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing
	for o := range s.client.Client.ListObjects(ctx, s3Bucket, minio.ListObjectsOptions{Prefix: prefix + "/", Recursive: true}) {
		if o.Err != nil {
			return nil, 0, o.Err
		}
		name, ok := pack.ParseName(strings.TrimPrefix(o.Key, prefix+"/"))
		if !ok || name.Index == 0 {
			continue
		}
		length, err := name.TailBytes(o.Size)
		if err != nil {
			return nil, 0, err
		}
		tail := make([]byte, length)
		if err := s.get(ctx, o.Key, name.Index, tail); err != nil {
			return nil, 0, err
		}
		err = pack.ReadIndex(name, tail, func(e *pack.Entry) bool {
			out[strings.Clone(e.Path)] = extent{o.Key, e.DataOffset(), e.Size}
			return true
		})
		if err != nil {
			return nil, 0, err
		}
		objects++
	}
	return out, objects, nil
}
