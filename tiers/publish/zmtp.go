package publish

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// This file is the part of ZMTP 3.0 (https://rfc.zeromq.org/spec/23) for sockets that send or
// answer: the greeting, the NULL mechanism, which is the same for both sides, and frames.

// Flags of a frame.
const (
	frameMore    = 1 // another frame of the same message follows
	frameLong    = 2 // the length has eight bytes
	frameCommand = 4
)

// Limits on what a peer may send: subscriptions and requests are small.
const (
	frameHeader   = 9       // at most
	maxInput      = 4 << 10 // bytes of a message
	maxInputParts = 16      // frames of a message
)

// errProtocol means that the peer does not speak ZMTP 3, or breaks its limits.
var errProtocol = errors.New("not what ZMTP 3 with NULL allows here")

// appendHeader appends the header of a frame of n bytes.
func appendHeader(dst []byte, flags byte, n int) []byte {
	if n > 255 {
		return binary.BigEndian.AppendUint64(append(dst, flags|frameLong), uint64(n))
	}
	return append(dst, flags, byte(n))
}

// appendFrame appends a frame.
func appendFrame(dst []byte, flags byte, body []byte) []byte {
	return append(appendHeader(dst, flags, len(body)), body...)
}

// appendCommand appends a command.
func appendCommand(dst []byte, name string, data []byte) []byte {
	dst = appendHeader(dst, frameCommand, 1+len(name)+len(data))
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, data...)
}

// received is a message or a command from a peer.
type received struct {
	frames  [][]byte // of a message
	command string   // or the name of a command
	data    []byte   // of the command
}

// receive reads the next message or command. It allocates at most maxInput bytes.
func receive(r *bufio.Reader) (received, error) {
	var in received
	for total := 0; ; {
		flags, body, err := readFrame(r, maxInput-total)
		if err != nil {
			return in, err
		}
		total += len(body)
		if flags&frameCommand != 0 {
			if flags&frameMore != 0 || len(in.frames) > 0 || len(body) == 0 || int(body[0]) > len(body)-1 {
				return in, fmt.Errorf("malformed command: %w", errProtocol)
			}
			end := 1 + int(body[0])
			return received{command: string(body[1:end]), data: body[end:]}, nil
		}
		if in.frames = append(in.frames, body); len(in.frames) > maxInputParts {
			return in, fmt.Errorf("message of more than %d frames: %w", maxInputParts, errProtocol)
		}
		if flags&frameMore == 0 {
			return in, nil
		}
	}
}

// readFrame reads a frame of at most limit bytes.
func readFrame(r *bufio.Reader, limit int) (flags byte, body []byte, err error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:2]); err != nil {
		return 0, nil, err
	}
	flags = head[0]
	if flags&^(frameMore|frameLong|frameCommand) != 0 {
		return 0, nil, fmt.Errorf("frame with flags %#x: %w", flags, errProtocol)
	}
	n := uint64(head[1])
	if flags&frameLong != 0 {
		if _, err := io.ReadFull(r, head[2:]); err != nil {
			return 0, nil, err
		}
		n = binary.BigEndian.Uint64(head[1:])
	}
	if n > uint64(limit) {
		return 0, nil, fmt.Errorf("frame of %d bytes: %w", n, errProtocol)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return flags, body, err
}

const greetingSize = 64

// greeting returns the greeting of both sides.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = 3, 0 // version
	copy(g[12:32], "NULL")
	return g
}

// handshake greets a peer, for a socket of type own, and fails unless the peer's type is one of
// accepted.
func handshake(w io.Writer, r *bufio.Reader, own string, accepted []string) error {
	if _, err := w.Write(greeting()); err != nil {
		return err
	}
	var g [greetingSize]byte
	if _, err := io.ReadFull(r, g[:]); err != nil {
		return err
	}
	if g[0] != 0xff || g[9]&1 == 0 || g[10] < 3 || [20]byte(g[12:32]) != [20]byte(greeting()[12:32]) {
		return fmt.Errorf("greeting %x: %w", g[:33], errProtocol)
	}
	ready := appendProperty(nil, "Socket-Type", own)
	if own == "ROUTER" {
		ready = appendProperty(ready, "Identity", "")
	}
	if _, err := w.Write(appendCommand(nil, "READY", ready)); err != nil {
		return err
	}
	in, err := receive(r)
	if err != nil {
		return err
	}
	if in.command != "READY" {
		return fmt.Errorf("command %q instead of READY: %w", in.command, errProtocol)
	}
	typ, err := property(in.data, "Socket-Type")
	if err != nil {
		return err
	}
	if !slices.Contains(accepted, typ) {
		return fmt.Errorf("socket of type %q connects to %s: %w", typ, own, errProtocol)
	}
	return nil
}

// appendProperty appends a property of READY.
func appendProperty(dst []byte, name, value string) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// property returns a property of READY, or "".
func property(data []byte, name string) (value string, err error) {
	for len(data) > 0 {
		n := int(data[0])
		if len(data) < 1+n+4 {
			return "", fmt.Errorf("malformed metadata: %w", errProtocol)
		}
		key, size := string(data[1:1+n]), binary.BigEndian.Uint32(data[1+n:])
		data = data[1+n+4:]
		if uint64(size) > uint64(len(data)) {
			return "", fmt.Errorf("malformed metadata: %w", errProtocol)
		}
		if strings.EqualFold(key, name) {
			value = string(data[:size])
		}
		data = data[size:]
	}
	return value, nil
}
