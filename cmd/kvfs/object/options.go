// Package object is the type of tier "object": what a configuration says of a tier on object storage.
package object

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object"
	"github.com/kvfs/kvfs/tiers/object/bucket"
)

// Options are the keys of an entry of tiers with this type.
type Options struct {
	URL         string `kvfs:"url" required:"true" example:"s3://kv-cache/cluster-a" help:"Bucket and prefix: s3://BUCKET/PREFIX. Nodes and clusters with the same bucket and prefix share their blocks."`
	Endpoint    string `kvfs:"endpoint" example:"https://s3.example.org:9000" auto:"https://s3.REGION.amazonaws.com" help:"Address of the store. http:// is without TLS."`
	Region      string `kvfs:"region" default:"us-east-1" help:"Region of the bucket."`
	Credentials string `kvfs:"credentials" default:"env" enum:"env|file|imds" help:"Where the access key comes from. env: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. file: credentials_file. imds: the metadata service of the machine, or the token file of a Kubernetes service account."`
	File        string `kvfs:"credentials_file" holds:"path" auto:"~/.aws/credentials" help:"File with the access key, in the format of the AWS tools; the profile is AWS_PROFILE or default. With credentials: file."`
	PathStyle   bool   `kvfs:"path_style" default:"true" help:"Name the bucket in the path, not in the host name. Most stores of one's own need this."`
	TLS         TLS    `kvfs:"tls" help:"How the store is recognized."`

	ReadOnly   bool            `kvfs:"read_only" default:"false" help:"Only read. kvfs stores and deletes nothing in the bucket."`
	PackBelow  scalar.Size     `kvfs:"pack_below" min:"0B" max:"7MiB" default:"4MiB" help:"Blocks smaller than this go together into objects of up to 64MiB. Zero: each block is an object."`
	PartSize   scalar.Size     `kvfs:"part_size" min:"1MiB" max:"1GiB" default:"8MiB" help:"Large blocks are read in parts of this size, in parallel."`
	Conns      int             `kvfs:"connections" min:"1" max:"1024" default:"64" help:"Most requests under way at a time."`
	ReadRate   scalar.Size     `kvfs:"read_rate" default:"0" help:"Most bytes a second read from the store. Zero means no limit."`
	WriteRate  scalar.Size     `kvfs:"write_rate" default:"0" help:"Most bytes a second written to the store. Zero means no limit."`
	Deadline   scalar.Duration `kvfs:"open_deadline" above:"0" default:"5s" help:"How long a load may take, retries included. After that the open is a miss."`
	Refresh    scalar.Duration `kvfs:"refresh" above:"0" default:"1m" help:"How often the bucket is listed for blocks that other nodes stored."`
	Capacity   scalar.Size     `kvfs:"capacity" default:"0" help:"Most bytes in the bucket below the prefix. Beyond that the oldest objects are deleted. Zero means no limit."`
	TTL        scalar.Duration `kvfs:"ttl" default:"0s" help:"Age at which objects are deleted. Zero means never."`
	Expire     string          `kvfs:"expire" default:"kvfs" enum:"kvfs|bucket" help:"Who deletes old objects. bucket: a lifecycle rule of the bucket; kvfs then deletes no objects with blocks, and capacity and ttl must be zero."`
	Tombstones scalar.Duration `kvfs:"tombstone_ttl" above:"0" default:"24h" help:"How long the store at least remembers a removed block, for nodes that have not heard of the removal."`
	Rewrites   scalar.Size     `kvfs:"daily_rewrites" default:"64GiB" help:"Most bytes of half-empty objects written anew in a day, to free their space. Zero means the default."`
	Budget     scalar.Size     `kvfs:"daily_write_budget" default:"0" help:"Most bytes stored in a day. Zero means no limit."`
}

// TLS says how the store is recognized.
type TLS struct {
	CAFile   string `kvfs:"ca_file" holds:"path" help:"Certificates (PEM) of the authorities that are trusted besides those of the system."`
	Insecure bool   `kvfs:"insecure" default:"false" help:"Trust any certificate. Anybody on the way can then read and change blocks in transit."`
}

var _ driver.Opener = (*Options)(nil)

// New returns empty options, for driver.Registry.
func New() driver.Opener { return &Options{} }

// Open implements driver.Opener. It does not wait for the store, so whatever it fails with is wrong in the configuration.
func (o *Options) Open(_ context.Context, name string, log *zap.Logger) (driver.Tier, error) {
	t, err := o.open(name, log)
	return t, exit.With(exit.Config, err)
}

// Validate finds what is wrong in keys that are right each for itself. It reads no file and asks no store.
func (o *Options) Validate() error {
	if o.Expire == "bucket" && (o.Capacity > 0 || o.TTL > 0) {
		return errors.New("expire: bucket excludes capacity and ttl: a lifecycle rule of the bucket takes their place")
	}
	without := *o // files, which may be on another machine
	without.TLS.CAFile, without.File = "", ""
	store, err := without.bucket(zap.NewNop())
	if err != nil {
		return err
	}
	return store.Close()
}

func (o *Options) open(name string, log *zap.Logger) (driver.Tier, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	store, err := o.bucket(log.Named(name))
	if err != nil {
		return nil, err
	}
	t, err := object.New(object.Options{
		Name: name, Bucket: store, Writer: writer(), ReadOnly: o.ReadOnly,
		PackBelow: cmp.Or(int64(o.PackBelow), -1), // there 0 is the default
		Refresh:   time.Duration(o.Refresh), CapacityBytes: int64(o.Capacity), TTL: time.Duration(o.TTL), BucketExpires: o.Expire == "bucket",
		TombstoneTTL: time.Duration(o.Tombstones), RewriteBytes: int64(o.Rewrites), BudgetBytes: int64(o.Budget), Logger: log,
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return t, nil
}

// Check checks the objects in the bucket; see object.Check.
func (o *Options) Check(ctx context.Context, c object.CheckOptions) (*object.Report, error) {
	if c.Repair && o.ReadOnly {
		return nil, errors.New("read_only excludes a repair, which deletes objects")
	}
	store, err := o.bucket(zap.NewNop())
	if err != nil {
		return nil, err
	}
	report, err := object.Check(ctx, store, c)
	if err != nil {
		err = fmt.Errorf("%v: %w", store, err)
	}
	return report, errors.Join(err, store.Close())
}

// Newest calls fn for the blocks in the bucket; see object.Newest.
func (o *Options) Newest(ctx context.Context, fn func(object.Named) bool) error {
	store, err := o.bucket(zap.NewNop())
	if err != nil {
		return err
	}
	if err = object.Newest(ctx, store, fn); err != nil {
		err = fmt.Errorf("%v: %w", store, err)
	}
	return errors.Join(err, store.Close())
}

// bucket returns the bucket, without asking the store. Close it.
func (o *Options) bucket(log *zap.Logger) (object.Bucket, error) {
	place, prefix, err := o.place()
	if err != nil {
		return nil, err
	}
	credentials, endpoint := o.Credentials, cmp.Or(o.Endpoint, "https://s3."+o.Region+".amazonaws.com")
	if o.File != "" {
		credentials += ":" + o.File
	}
	store, err := bucket.New(bucket.Options{
		Endpoint: endpoint, Bucket: place, Prefix: prefix, Region: o.Region, Credentials: credentials,
		PathStyle: o.PathStyle, CAFile: o.TLS.CAFile, Insecure: o.TLS.Insecure, PartSize: int64(o.PartSize), Connections: o.Conns,
		ReadBytesPerSecond: int64(o.ReadRate), WriteBytesPerSecond: int64(o.WriteRate), OpenDeadline: time.Duration(o.Deadline),
		Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return counted{store}, nil
}

// counted is a bucket.Bucket whose Stats are ready for package object.
type counted struct{ *bucket.Bucket }

// Stats implements object.Bucket.
func (c counted) Stats() any { return c.Bucket.Stats() }

func (o *Options) place() (name, prefix string, err error) {
	u, err := url.Parse(o.URL)
	if err == nil && u.User != nil {
		return "", "", errors.New("url: it names a user or a key, want s3://BUCKET/PREFIX; see credentials")
	}
	if err != nil || u.Scheme != "s3" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", "", fmt.Errorf("url %q: want s3://BUCKET or s3://BUCKET/PREFIX", o.URL)
	}
	if err := bucket.CheckName(u.Host); err != nil {
		return "", "", fmt.Errorf("url %q: S3 has no bucket %q: %w", o.URL, u.Host, err)
	}
	return u.Host, strings.Trim(u.Path, "/"), nil
}

// writer returns a number for this process. The upper half is the same for all processes of the machine.
func writer() uint64 {
	host, _ := os.Hostname()
	sum := sha256.Sum256([]byte(host))
	return uint64(binary.BigEndian.Uint32(sum[:]))<<32 | uint64(rand.Uint32())
}
