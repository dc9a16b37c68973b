package bucket

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
)

// Options say where the objects are. They name the source of the credentials and never hold a secret, so they may be
// printed.
type Options struct {
	// Endpoint is the server: host:port, which means HTTPS, or a URL of http or https without a path.
	Endpoint string `json:"endpoint"`
	// Bucket is the name of the bucket, which exists.
	Bucket string `json:"bucket"`
	// Prefix begins the name of every object; "kv" and "kv/" mean the same. Nothing outside is read, listed or removed.
	// Empty means the whole bucket.
	Prefix string `json:"prefix,omitempty"`
	// Region is the region of the bucket. Empty means that the server is asked.
	Region string `json:"region,omitempty"`
	// Credentials is where the key and the secret come from:
	//
	//	env         AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; the default
	//	file        ~/.aws/credentials and ~/.aws/config, with AWS_PROFILE
	//	file:PATH   a file in the format of ~/.aws/credentials
	//	imds        the role of the instance, of the container or of the service account
	Credentials string `json:"credentials,omitempty"`
	// PathStyle puts the bucket into the path of a URL. Without it the bucket is in the host name for the servers that
	// are known to want that, such as AWS, and in the path for all others.
	PathStyle bool `json:"path_style,omitempty"`
	// CAFile is a PEM file with certificates that are trusted besides those of the system.
	CAFile string `json:"ca_file,omitempty"`
	// Insecure accepts every certificate. For tests.
	Insecure bool `json:"insecure,omitempty"`
	// PartSize is how many bytes one request of a large read asks for. Zero means 8 MiB; at least 64 KiB.
	PartSize int64 `json:"part_size,omitempty"`
	// Connections is how many requests run in parallel; more wait. Zero means 64; at most 1024.
	Connections int `json:"connections,omitempty"`
	// ReadBytesPerSecond and WriteBytesPerSecond limit the traffic. Zero means no limit; else at least 1 MiB. A call waits
	// for its share before its deadline begins.
	ReadBytesPerSecond  int64 `json:"read_bytes_per_second,omitempty"`
	WriteBytesPerSecond int64 `json:"write_bytes_per_second,omitempty"`
	// OpenDeadline is how long a read may take, repetitions included, besides 1 s for each 16 MiB of its length. Other
	// calls may take five times as long, besides 1 s for each MiB. Zero means 2 s; from 10 ms to 1 min.
	OpenDeadline time.Duration `json:"open_deadline,omitempty"`
	// Logger hears when the server is given up and when it is back. nil means no log.
	Logger *zap.Logger `json:"-"`
}

const (
	minPartSize    = 64 << 10
	maxConnections = 1024
	minDeadline    = 10 * time.Millisecond
	maxDeadline    = time.Minute
	maxPrefix      = 512 // bytes; S3 takes names of 1024
	minRate        = 1 << 20
)

// withDefaults returns the options with values for what is zero.
func (o Options) withDefaults() Options {
	if o.Prefix != "" && !strings.HasSuffix(o.Prefix, "/") {
		o.Prefix += "/"
	}
	if o.Credentials == "" {
		o.Credentials = "env"
	}
	if o.PartSize == 0 {
		o.PartSize = 8 << 20
	}
	if o.Connections == 0 {
		o.Connections = 64
	}
	if o.OpenDeadline == 0 {
		o.OpenDeadline = 2 * time.Second
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// Validate returns all violations, joined; each wraps block.ErrInvalid. It reads no file and asks no server.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, block.ErrInvalid)...))
		}
	}
	_, err := o.url()
	check(err == nil, "endpoint: %v", err)
	check(o.Bucket != "" && !strings.Contains(o.Bucket, "/"), "bucket %q: want the name of a bucket", o.Bucket)
	err = checkPath(strings.TrimSuffix(o.Prefix, "/"))
	check(o.Prefix == "" || err == nil, "prefix %q: %v", o.Prefix, err)
	check(len(o.Prefix) <= maxPrefix, "prefix of %d bytes: want at most %d", len(o.Prefix), maxPrefix)
	kind, path, _ := strings.Cut(o.Credentials, ":")
	check(o.Credentials == "env" || o.Credentials == "imds" || o.Credentials == "file" || kind == "file" && path != "",
		"credentials: want env, file, file:PATH or imds")
	check(o.PartSize >= minPartSize, "part_size %d: want at least %d", o.PartSize, minPartSize)
	check(o.Connections >= 1 && o.Connections <= maxConnections, "connections %d: want 1 to %d", o.Connections, maxConnections)
	check(o.ReadBytesPerSecond == 0 || o.ReadBytesPerSecond >= minRate, "read_bytes_per_second %d: want 0 or at least %d", o.ReadBytesPerSecond, minRate)
	check(o.WriteBytesPerSecond == 0 || o.WriteBytesPerSecond >= minRate, "write_bytes_per_second %d: want 0 or at least %d", o.WriteBytesPerSecond, minRate)
	check(o.OpenDeadline >= minDeadline && o.OpenDeadline <= maxDeadline, "open_deadline %v: want %v to %v", o.OpenDeadline, minDeadline, maxDeadline)
	return errors.Join(errs...)
}

// url returns the endpoint as a URL. Its errors do not show the endpoint, in which somebody may have put a password.
func (o Options) url() (*url.URL, error) {
	text := o.Endpoint
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("want host:port, http://host:port or https://host:port")
	case u.User != nil:
		return nil, errors.New("want no user and no password in it: see credentials")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("want no path in it: see bucket and prefix")
	}
	return u, nil
}

// checkPath refuses names that a server, or something on the way to it, may take for another one.
func checkPath(name string) error {
	switch {
	case name == "":
		return errors.New("want a name")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("want UTF-8 without control characters")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return errors.New(`want no empty part, "." or ".." in it`)
		}
	}
	return nil
}

// client returns the client of the library, which makes its requests through via.
func (o Options) client(via http.RoundTripper) (*minio.Core, error) {
	u, err := o.url()
	if err != nil {
		return nil, err
	}
	look := minio.BucketLookupAuto
	if o.PathStyle {
		look = minio.BucketLookupPath
	}
	return minio.NewCore(u.Host, &minio.Options{
		Creds: o.source(), Secure: u.Scheme == "https", Transport: via, Region: o.Region, BucketLookup: look, MaxRetries: 1,
	})
}

// source returns where the credentials come from.
func (o Options) source() *credentials.Credentials {
	kind, path, _ := strings.Cut(o.Credentials, ":")
	switch kind {
	case "file":
		return credentials.NewFileAWSCredentials(path, "")
	case "imds":
		return credentials.NewIAM("")
	}
	return credentials.NewEnvAWS()
}

// transport returns the HTTP client below the library.
func (o Options) transport() (*http.Transport, error) {
	t, err := minio.DefaultTransport(true)
	if err != nil {
		return nil, err
	}
	t.MaxConnsPerHost, t.MaxIdleConns, t.MaxIdleConnsPerHost = o.Connections, o.Connections, o.Connections
	t.WriteBufferSize = 64 << 10
	t.ResponseHeaderTimeout = 0 // type wire has one for each kind of request
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.Insecure}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %v: %w", err, block.ErrInvalid)
		}
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s: no certificate in it: %w", o.CAFile, block.ErrInvalid)
		}
		t.TLSClientConfig.RootCAs = roots
	}
	return t, nil
}
