package peer

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/tiers/block"
)

// Defaults and limits.
const (
	defaultTimeout       = 5 * time.Second
	defaultInFlightBytes = 256 << 20

	maxReplicas = 16
)

// Options configures a Tier.
type Options struct {
	// Name stands in errors and logs. Empty means "peer".
	Name string
	// Node is this node's part in the cluster: open, not started. The Tier starts and closes it.
	// Required.
	Node *cluster.Node
	// Lost brings losses of watched blocks from the location index of Node: its Tell must be in
	// cluster.Options.Location.Lost. Required.
	Lost *Lost

	// Replicas is how many peers get a copy of a stored block. 0: the tier only reads. At most 16.
	Replicas int
	// PreferredSegment is the peer that is asked first to take copies: the name of a member, or the
	// host:port of its gossip, control or bulk address. While it is absent the others are asked.
	// Empty: no preference.
	PreferredSegment string
	// Zone is this node's zone. Peers of the same zone are asked to take copies before others.
	// Empty: zones do not count.
	Zone string
	// Accept says whether this node takes copies of others' blocks.
	Accept bool

	// WorldReadable says that peers get only blocks that every user of this machine may read, by
	// the mode of the block and of the directories above it, because any user can say that it is a
	// peer.
	WorldReadable bool

	// Timeout bounds the time of a block over all holders together, from when the previous block in the
	// same request came. Zero means 5 s.
	Timeout time.Duration
	// Silence is the least time in which a holder must send something. A holder that does not is
	// given up. Zero means 300 ms.
	Silence time.Duration
	// HedgeQuantile: a fetch that takes longer than this part of the recent ones of its size is
	// begun at a second holder as well. From 0 to below 1; 0: never.
	HedgeQuantile float64
	// MaxInFlightBytes bounds the bytes being fetched at a time. A larger request goes alone. Zero
	// means 256 MiB.
	MaxInFlightBytes int64

	Logger *zap.Logger // nil means none
}

// withDefaults returns o with its zero fields filled in, or every violation, each an
// ErrInvalid.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, block.ErrInvalid)...))
	}
	if o.Name == "" {
		o.Name = "peer"
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Silence == 0 {
		o.Silence = minSilence
	}
	if o.MaxInFlightBytes == 0 {
		o.MaxInFlightBytes = defaultInFlightBytes
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Lost == nil {
		bad("Lost missing")
	}
	if o.Replicas < 0 || o.Replicas > maxReplicas {
		bad("Replicas %d: want 0 to %d", o.Replicas, maxReplicas)
	}
	if o.Timeout < 0 {
		bad("Timeout %v: want more than 0", o.Timeout)
	}
	if o.Silence < 0 {
		bad("Silence %v: want more than 0", o.Silence)
	}
	if !(o.HedgeQuantile >= 0 && o.HedgeQuantile < 1) {
		bad("HedgeQuantile %v: want 0 to below 1", o.HedgeQuantile)
	}
	if o.MaxInFlightBytes < 0 {
		bad("MaxInFlightBytes %d: want more than 0", o.MaxInFlightBytes)
	}
	if err := CheckSegment(o.PreferredSegment); err != nil {
		errs = append(errs, err)
	}
	return o, errors.Join(errs...)
}

// CheckSegment fails with an ErrInvalid if s cannot name a preferred segment: it is neither empty,
// nor the name of a member, nor host:port with an IPv6 address in brackets.
func CheckSegment(s string) error {
	bare := true // no character of an address
	for _, c := range s {
		if c <= ' ' || c == 0x7f || c == '/' {
			return fmt.Errorf("preferred segment %q: white space, control character or slash: %w", s, block.ErrInvalid)
		}
		bare = bare && c != ':' && c != '[' && c != ']'
	}
	if bare {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("preferred segment %q: want a member's name or host:port: %w", s, block.ErrInvalid)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || host == "" {
		return fmt.Errorf("preferred segment %q: want a host and a port from 1 to 65535: %w", s, block.ErrInvalid)
	}
	return nil
}
