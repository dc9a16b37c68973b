package config

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/template"
)

// Events configures the receivers of events about blocks, besides the readers of the control directory.
type Events struct {
	ZMQ ZMQ `kvfs:"zmq" help:"ZeroMQ sockets for routers, in the format of vLLM's KV event publisher. Off without bind and connect."`
}

// ZMQ configures the publisher for routers.
type ZMQ struct {
	Bind       string   `kvfs:"bind" holds:"path" check:"endpoint" example:"tcp://127.0.0.1:5557" help:"Where subscribers connect, tcp://host:port or ipc:///path; port 0 is a free one. Empty means nowhere. An address that is not loopback needs insecure, because these sockets have no keys."`
	Connect    []string `kvfs:"connect" holds:"path" check:"endpoint" example:"tcp://router:5557" help:"Addresses of subscribers to which kvfs connects, in the same form, as vLLM does for an endpoint without a wildcard. kvfs connects again when they were away. At most 64; with or without bind."`
	Replay     string   `kvfs:"replay" holds:"path" check:"endpoint" example:"tcp://127.0.0.1:5558" help:"Where subscribers ask for messages that they missed, in the same form. Empty means nowhere."`
	ReplayBare bool     `kvfs:"replay_bare" default:"false" help:"Leave the topic out of repeated messages, as SGLang does, and vLLM before 0.26."`
	Topic      string   `kvfs:"topic" check:"topic" default:"kv-events" help:"First frame of each message, at most 255 bytes."`
	Hash       string   `kvfs:"hash" enum:"int|bytes|text" default:"int" help:"Form of the hashes in messages. int: their lower 64 bits, the default of vLLM. bytes: all of them. text: as they stand in the names of blocks."`
	Encoding   string   `kvfs:"encoding" enum:"map|array" default:"map" help:"Form of the events in messages. map: with field names, as vLLM since 0.24. array: by position, for older readers."`
	DiskMedium string   `kvfs:"disk_medium" enum:"STORAGE|DISK" default:"STORAGE" help:"Name of the SSD tier in messages. STORAGE: the name of vLLM's file tier since 0.27, with locality LOCAL. DISK: for readers without STORAGE, such as Dynamo before 1.5."`
	Templates  []string `kvfs:"templates" check:"template" example:"{group}/{hash},llama_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin" help:"Where the hash and the group stand in the path of a block below the mount. The first template that fits counts. Blocks that fit none are not announced. Empty means {group}/{hash}."`
	BlockSize  int      `kvfs:"block_size" min:"0" default:"0" help:"Tokens to a block, for the messages. Zero means that it is not known."`
	Insecure   bool     `kvfs:"insecure" default:"false" help:"Allow addresses that are not loopback. Every machine that reaches them can then see which blocks there are."`
}

// validateEvents checks the sockets for routers against each other, and refuses those
// that others can reach unless that is wanted.
func (l *loader) validateEvents() {
	const bind, replay = "events.zmq.bind", "events.zmq.replay"
	z := l.cfg.Events.ZMQ
	l.validateConnect(&z)
	if z.Replay != "" && l.good(bind, replay, "events.zmq.connect") {
		switch o := l.cfg.Origin(replay); {
		case z.Bind == "" && len(z.Connect) == 0:
			l.fail(o, replay, scalar.Violate(scalar.ErrInvalid, "it needs %s or events.zmq.connect, without which nothing is published", bind))
		case sameEndpoint(z.Bind, z.Replay):
			l.failLatest(replay, bind, scalar.Violate(scalar.ErrInvalid, "replay %q (%v) must differ from bind %q (%v)",
				z.Replay, o, z.Bind, l.cfg.Origin(bind)))
		}
	}
	if z.Insecure || l.cfg.Insecure || !l.good("insecure", "events.zmq.insecure") {
		return
	}
	for _, a := range []struct{ path, endpoint string }{{bind, z.Bind}, {replay, z.Replay}} {
		if address, ok := strings.CutPrefix(a.endpoint, tcpScheme); ok && l.good(a.path) && !scalar.IsLoopback(address) {
			l.fail(l.cfg.Origin(a.path), a.path, scalar.Violate(scalar.ErrInvalid,
				"%q is not a loopback address, and ZeroMQ has no keys here: anyone that reaches it sees the names of the blocks; events.zmq.insecure: true (or insecure: true) allows it", a.endpoint))
		}
	}
}

// maxConnect bounds the subscribers that are connected to.
const maxConnect = 64

// validateConnect checks the subscribers that are connected to. They need no insecure: nobody else reaches anything.
func (l *loader) validateConnect(z *ZMQ) {
	const connect = "events.zmq.connect"
	if !l.good(connect) {
		return
	}
	o := l.cfg.Origin(connect)
	if len(z.Connect) > maxConnect {
		l.fail(o, connect, scalar.Violate(scalar.ErrRange, "%d endpoints: want at most %d", len(z.Connect), maxConnect))
		return
	}
	for i, endpoint := range z.Connect {
		element := fmt.Sprintf("%s[%d]", connect, i)
		var err error
		switch {
		case !l.good(element): // said already
		case !hasPeer(endpoint):
			err = scalar.Violate(scalar.ErrInvalid, "%q is not a place to connect to: want a host and a port from 1 to 65535, or ipc:///path", endpoint)
		case slices.ContainsFunc(z.Connect[:i], func(other string) bool { return sameEndpoint(other, endpoint) }):
			err = scalar.Violate(scalar.ErrInvalid, "%q is there twice", endpoint)
		case sameEndpoint(z.Bind, endpoint) || sameEndpoint(z.Replay, endpoint):
			err = scalar.Violate(scalar.ErrInvalid, "%q is a socket of kvfs itself: want one of a subscriber", endpoint)
		}
		if err != nil {
			l.fail(o, element, err)
		}
	}
}

// hasPeer reports whether an endpoint, which Load has accepted, is one that can be connected to.
func hasPeer(endpoint string) bool {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, tcpScheme))
	if strings.HasPrefix(endpoint, ipcScheme) || err != nil {
		return true
	}
	num, _ := strconv.Atoi(port)
	ip, err := netip.ParseAddr(plainHost(host))
	return num != 0 && (err != nil || !ip.IsUnspecified())
}

// The transports of endpoints.
const (
	tcpScheme = "tcp://"
	ipcScheme = "ipc://"
)

// maxSocket is the longest path of a socket in Linux, in bytes.
const maxSocket = 107

// isSocket reports whether a unix socket can have this path: clean, from the root.
func isSocket(file string) bool {
	return path.IsAbs(file) && path.Clean(file) == file && file != "/" && len(file) <= maxSocket && !strings.ContainsRune(file, 0)
}

// checkEndpoint wants a place to bind a ZeroMQ socket to. The host * stands for all addresses, as everywhere with ZeroMQ.
func checkEndpoint(s string) error {
	if file, ok := strings.CutPrefix(s, ipcScheme); ok {
		if !isSocket(file) {
			return scalar.Violate(scalar.ErrInvalid, "%q does not name a socket: want ipc:// and a clean path from the root of at most %d bytes, such as ipc:///run/kvfs/events.sock", s, maxSocket)
		}
		return nil
	}
	address, ok := strings.CutPrefix(s, tcpScheme)
	host, port, err := net.SplitHostPort(address)
	if !ok || err != nil {
		return scalar.Violate(scalar.ErrInvalid, "%q is not tcp://host:port or ipc:///path, such as tcp://127.0.0.1:5557", s)
	}
	if _, err := scalar.ParsePort(s, port, 0); err != nil || host == "*" {
		return err
	}
	return scalar.CheckHost(s, host)
}

// sameEndpoint reports whether two endpoints, which Load has accepted, are one place. Port 0 is another one each time.
func sameEndpoint(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(strings.TrimPrefix(a, tcpScheme))
	hostB, portB, errB := net.SplitHostPort(strings.TrimPrefix(b, tcpScheme))
	if strings.HasPrefix(a, ipcScheme) || strings.HasPrefix(b, ipcScheme) || errA != nil || errB != nil {
		return a == b
	}
	numA, _ := strconv.Atoi(portA)
	numB, _ := strconv.Atoi(portB)
	return numA == numB && numA != 0 && plainHost(hostA) == plainHost(hostB)
}

// plainHost returns one form for hosts that can be written in several.
func plainHost(host string) string {
	if host == "*" {
		host = "0.0.0.0"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// maxTopic bounds a topic, in bytes.
const maxTopic = 255

func checkTopic(s string) error {
	if len(s) > maxTopic {
		return scalar.Violate(scalar.ErrRange, "a topic of %d bytes: want at most %d", len(s), maxTopic)
	}
	return nil
}

// checkTemplate wants the path of a block below the mount, with the hash in it.
func checkTemplate(s string) error {
	t, err := template.Parse([]byte(s))
	if err == nil {
		err = t.Reversible()
	}
	if err != nil {
		return scalar.Violate(scalar.ErrInvalid, "%.64q: %v", s, err)
	}
	if file := string(t.Sample()); path.Clean("/"+file) != "/"+file || strings.ContainsRune(s, 0) {
		return scalar.Violate(scalar.ErrInvalid, "%q is not a path below the mount, such as {group}/{hash}", s)
	}
	return nil
}
