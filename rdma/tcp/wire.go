package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/kvfs/kvfs/rdma"
)

// Versions of the protocol that this side speaks.
const (
	oldestVersion = 1
	newestVersion = 1
)

// magic opens each direction of a connection.
const magic = "kvfsbulk"

// Sizes of the frames, without variable parts.
const (
	helloSize   = 16
	requestSize = 16
	answerSize  = 16
	rangeSize   = 16 // follows the key of a read
	maxKey      = 255
)

// window bounds the requests of a reader that are not confirmed. So neither side ever has to wait
// for the other to read: a holder sends without reading.
const (
	windowItems = 16
	windowNames = 32 << 10 // bytes of names, beyond the first
)

// kind is the first byte of a frame.
type kind byte

// Kinds of frame. The holder's kinds have the high bit.
const (
	kindGet     kind = 1 // name
	kindRead    kind = 2 // key, offset and count
	kindConfirm kind = 3 // nothing
	kindAnswer  kind = 0x81
	kindWait    kind = 0x82 // the holder is still looking for the block
)

// status is the result in an answer.
type status byte

// Statuses of an answer. Only an answer with statusOK has a header and bytes.
const (
	statusOK status = iota
	statusGone
	statusBusy
	statusFailed
	statusLater // only for readers that have told in the name that they know it
	statusEnd   // not a status: the first free value
)

// err is the reader's error for s.
func (s status) err() error {
	switch s {
	case statusOK:
		return nil
	case statusGone:
		return rdma.ErrGone
	case statusBusy:
		return rdma.ErrBusy
	case statusLater:
		return rdma.ErrLater
	default:
		return fmt.Errorf("%w: the holder failed to read the block", rdma.ErrUnavailable)
	}
}

// request is a frame of the reader: kind, 0, length of name (2 bytes), number (4),
// confirmed (4), 4 zero bytes, then name, then for kindRead offset and count (8 bytes
// each). All numbers are little-endian.
type request struct {
	kind      kind
	seq       uint32 // counts the gets and reads of the connection
	confirmed uint32 // answers that the reader has consumed
	name      []byte // or key
	off, n    int64
}

// appendRequest appends the frame of r.
func appendRequest(b []byte, r request) []byte {
	b = append(b, byte(r.kind), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.name)))
	b = binary.LittleEndian.AppendUint32(b, r.seq)
	b = binary.LittleEndian.AppendUint32(b, r.confirmed)
	b = append(b, 0, 0, 0, 0)
	b = append(b, r.name...)
	if r.kind == kindRead {
		b = binary.LittleEndian.AppendUint64(b, uint64(r.off))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.n))
	}
	return b
}

// parseRequest reads the fixed part of a request, requestSize bytes. It returns how many bytes
// follow: never more than a name may have.
func parseRequest(b []byte) (request, int, error) {
	r := request{
		kind:      kind(b[0]),
		seq:       binary.LittleEndian.Uint32(b[4:]),
		confirmed: binary.LittleEndian.Uint32(b[8:]),
	}
	n := int(binary.LittleEndian.Uint16(b[2:]))
	if b[1] != 0 || binary.LittleEndian.Uint32(b[12:]) != 0 {
		return r, 0, fmt.Errorf("%w: request with unknown flags", rdma.ErrProtocol)
	}
	switch {
	case r.kind == kindGet && n <= rdma.MaxName:
		return r, n, nil
	case r.kind == kindRead && n <= maxKey:
		return r, n + rangeSize, nil
	case r.kind == kindConfirm && n == 0:
		return r, 0, nil
	}
	return r, 0, fmt.Errorf("%w: request of kind %d with %d bytes", rdma.ErrProtocol, r.kind, n)
}

// parseRest reads the variable part. The name refers to b.
func (r *request) parseRest(b []byte) error {
	r.name = b
	if r.kind != kindRead {
		return nil
	}
	at := len(b) - rangeSize
	r.name = b[:at]
	r.off = int64(binary.LittleEndian.Uint64(b[at:]))
	r.n = int64(binary.LittleEndian.Uint64(b[at+8:]))
	if r.off < 0 || r.n < 0 || r.off+r.n < 0 {
		return fmt.Errorf("%w: read of %d bytes at %d", rdma.ErrProtocol, r.n, r.off)
	}
	return nil
}

// answer is a frame of the holder: kind, status, length of the header (2 bytes),
// number of the request (4), size (8), then the header, then size bytes.
type answer struct {
	kind   kind
	status status
	header int
	seq    uint32
	size   int64
}

// appendAnswer appends the fixed part of a.
func appendAnswer(b []byte, a answer) []byte {
	b = append(b, byte(a.kind), byte(a.status))
	b = binary.LittleEndian.AppendUint16(b, uint16(a.header))
	b = binary.LittleEndian.AppendUint32(b, a.seq)
	return binary.LittleEndian.AppendUint64(b, uint64(a.size))
}

// parseAnswer reads the fixed part of the answer to request seq, answerSize bytes.
func parseAnswer(b []byte, seq uint32) (answer, error) {
	a := answer{
		kind:   kind(b[0]),
		status: status(b[1]),
		header: int(binary.LittleEndian.Uint16(b[2:])),
		seq:    binary.LittleEndian.Uint32(b[4:]),
		size:   int64(binary.LittleEndian.Uint64(b[8:])),
	}
	switch {
	case a.kind != kindAnswer && a.kind != kindWait:
		return a, fmt.Errorf("%w: frame of kind %d where an answer belongs", rdma.ErrProtocol, a.kind)
	case a.seq != seq:
		return a, fmt.Errorf("%w: answer %d where %d belongs", rdma.ErrProtocol, a.seq, seq)
	case a.status >= statusEnd || a.size < 0 || a.header > rdma.MaxHeader:
		return a, fmt.Errorf("%w: answer with status %d, header of %d bytes, size %d", rdma.ErrProtocol, a.status, a.header, a.size)
	case (a.kind == kindWait || a.status != statusOK) && (a.size != 0 || a.header != 0):
		return a, fmt.Errorf("%w: %d bytes with status %d", rdma.ErrProtocol, a.size, a.status)
	}
	return a, nil
}

// appendHello appends the greeting: magic, oldest and newest version, 4 bytes without meaning yet.
func appendHello(b []byte, oldest, newest uint16) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, oldest)
	b = binary.LittleEndian.AppendUint16(b, newest)
	return append(b, 0, 0, 0, 0)
}

// errStranger: the other side does not speak this protocol.
var errStranger = fmt.Errorf("%w: not a bulk connection", rdma.ErrProtocol)

// parseHello reads a greeting of helloSize bytes and agrees on a version.
func parseHello(b []byte) (version uint16, err error) {
	if string(b[:len(magic)]) != magic {
		return 0, errStranger
	}
	oldest, newest := binary.LittleEndian.Uint16(b[8:]), binary.LittleEndian.Uint16(b[10:])
	version = min(newest, newestVersion)
	if oldest > newest || version < max(oldest, oldestVersion) {
		return 0, fmt.Errorf("%w: peer speaks versions %d to %d, this side %d to %d",
			rdma.ErrProtocol, oldest, newest, oldestVersion, newestVersion)
	}
	return version, nil
}
