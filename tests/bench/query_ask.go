package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dialogue is an open control file, used with bare system calls as in client.
type dialogue struct {
	fd  int
	buf []byte // of answers
}

// openDialogue opens a file of the control directory. The caller must close it.
func openDialogue(t *target, file string) (*dialogue, error) {
	name, err := unix.BytePtrFromString(t.dir + "/.kvfs/" + file)
	if err != nil {
		return nil, err
	}
	fd, err := open(name, unix.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("%s/.kvfs/%s: %w", t.dir, file, err)
	}
	return &dialogue{fd: fd, buf: make([]byte, 64*kib)}, nil
}

func (d *dialogue) close() error { return closeFd(d.fd) }

// ask writes a request and returns the answer, which is valid until the next call.
func (d *dialogue) ask(request []byte) ([]byte, error) {
	for len(request) > 0 {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(d.fd),
			uintptr(unsafe.Pointer(&request[0])), uintptr(len(request)))
		if err := failed("write", errno); err != nil && errno != unix.EINTR {
			return nil, err
		} else if err == nil {
			request = request[n:]
		}
	}
	for have := 0; ; {
		if have == len(d.buf) {
			d.buf = append(d.buf, make([]byte, len(d.buf))...)
		}
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(d.fd),
			uintptr(unsafe.Pointer(&d.buf[have])), uintptr(len(d.buf)-have))
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return nil, failed("read", errno)
		case n == 0:
			return d.buf[:have], nil
		default:
			have += int(n)
		}
	}
}

// jsonQuery is a request of exists or longest_hit.
type jsonQuery struct {
	Op        string   `json:"op"`
	Group     string   `json:"group,omitempty"`
	Spec      string   `json:"spec,omitempty"`
	Hashes    []string `json:"hashes"`
	NumTokens int      `json:"num_tokens,omitempty"`
}

// Operations of the binary form.
const (
	opExists     = 1
	opLongestHit = 2
)

const (
	binaryHashBytes     = 32
	binaryRequestHeader = 32
	binaryAnswerHeader  = 24
)

// binaryQuery makes a binary request: of exists with a group, or of longest_hit with the name of a
// spec. The hashes are written as bytes.
func binaryQuery(op byte, subject string, hashes []string, tokens int) ([]byte, error) {
	out := make([]byte, binaryRequestHeader, binaryRequestHeader+len(subject)+len(hashes)*binaryHashBytes)
	copy(out, "KVQ1")
	out[4] = op
	binary.LittleEndian.PutUint16(out[6:], binaryHashBytes)
	binary.LittleEndian.PutUint32(out[8:], uint32(len(hashes)))
	binary.LittleEndian.PutUint16(out[16:], uint16(len(subject)))
	binary.LittleEndian.PutUint32(out[24:], uint32(tokens))
	out = append(out, subject...)
	for _, h := range hashes {
		var err error
		if out, err = hex.AppendDecode(out, []byte(h)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// decodeBinary checks the head of a binary answer. It returns its numbers and the rest.
func decodeBinary(answer []byte) (numbers [5]int, rest []byte, err error) {
	if len(answer) >= 8 && string(answer[:4]) == "KVE1" {
		return numbers, nil, fmt.Errorf("refused: %s", answer[8:])
	}
	if len(answer) < binaryAnswerHeader || string(answer[:4]) != "KVA1" {
		return numbers, nil, fmt.Errorf("not an answer: %.40q", answer)
	}
	for i := range numbers {
		numbers[i] = int(binary.LittleEndian.Uint32(answer[4+4*i:]))
	}
	return numbers, answer[binaryAnswerHeader:], nil
}

// wantStates checks an answer to exists.
func wantStates(states string, hits, names, want int) error {
	if len(states) != names || hits != want {
		return fmt.Errorf("%d states and %d hits, want %d and %d", len(states), hits, names, want)
	}
	return nil
}

// checkExistsJSON decodes an answer.
func checkExistsJSON(answer []byte, names, want int) error {
	var a struct {
		Error  string
		States string
		Hits   int
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return err
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return wantStates(a.States, a.Hits, names, want)
}

func checkExistsBinary(answer []byte, names, want int) error {
	numbers, states, err := decodeBinary(answer)
	if err != nil {
		return err
	}
	if numbers[4] != len(states) {
		return fmt.Errorf("%d bytes of states, but %d are told", len(states), numbers[4])
	}
	return wantStates(string(states), numbers[0], names, want)
}

// wantHit checks an answer to longest_hit: the tokens, and how many blocks of each group are to be
// read.
func wantHit(tokens, want int, loads []string, blocks []int) error {
	if tokens != want || len(loads) != len(blocks) {
		return fmt.Errorf("a hit of %d tokens in %d groups, want %d in %d", tokens, len(loads), want, len(blocks))
	}
	for i, load := range loads {
		got := 0
		for _, b := range []byte(load) {
			got += int(b - '0')
		}
		if got != blocks[i] {
			return fmt.Errorf("%d blocks of group %d to be read, want %d", got, i, blocks[i])
		}
	}
	return nil
}

func checkHitJSON(answer []byte, want int, blocks []int) error {
	var a struct {
		Error     string
		HitTokens int `json:"hit_tokens"`
		Groups    []struct{ Load string }
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return err
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	var loads []string
	for _, g := range a.Groups {
		loads = append(loads, g.Load)
	}
	return wantHit(a.HitTokens, want, loads, blocks)
}

func checkHitBinary(answer []byte, want int, blocks []int) error {
	numbers, rest, err := decodeBinary(answer)
	if err != nil {
		return err
	}
	var loads []string
	for range numbers[4] {
		if len(rest) < 4 || len(rest)-4 < int(binary.LittleEndian.Uint32(rest)) {
			return fmt.Errorf("the answer ends in group %d", len(loads))
		}
		n := 4 + int(binary.LittleEndian.Uint32(rest))
		loads = append(loads, string(rest[4:n]))
		rest = rest[n:]
	}
	return wantHit(numbers[0], want, loads, blocks)
}
