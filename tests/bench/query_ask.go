package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dialogue is an open control file, used with bare system calls as in client.
type dialogue struct {
	fd  int
	buf []byte // of answers
}

// dialogue opens a file of the control directory until the end of the job.
func (j *job) dialogue(t *target, file string) *dialogue {
	fd := open(get(unix.BytePtrFromString(t.dir+"/.kvfs/"+file)), unix.O_RDWR)
	j.later(func() { closeFd(fd) })
	return &dialogue{fd: fd, buf: make([]byte, 64*kib)}
}

// askOnce asks on a thread of the pool.
func (j *job) askOnce(d *dialogue, request []byte) (answer []byte) {
	j.once(1, 1, func(*client, int) { answer = d.ask(request) })
	return answer
}

// ask writes a request and returns the answer, which is valid until the next call.
func (d *dialogue) ask(request []byte) []byte {
	call := func(number uintptr, b []byte) int {
		for {
			n, _, errno := unix.RawSyscall(number, uintptr(d.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
			if errno != unix.EINTR {
				succeeded("read or write", errno)
				return int(n)
			}
		}
	}
	for len(request) > 0 {
		request = request[call(unix.SYS_WRITE, request):]
	}
	for have := 0; ; {
		if have == len(d.buf) {
			d.buf = append(d.buf, make([]byte, len(d.buf))...)
		}
		n := call(unix.SYS_READ, d.buf[have:])
		if n == 0 {
			return d.buf[:have]
		}
		have += n
	}
}

type jsonQuery struct {
	Op        string   `json:"op"`
	Group     string   `json:"group,omitempty"`
	Spec      string   `json:"spec,omitempty"`
	Hashes    []string `json:"hashes"`
	NumTokens int      `json:"num_tokens,omitempty"`
}

// jsonAnswer is an answer to both, and to others.
type jsonAnswer struct {
	Error     string
	States    string
	Hits      int
	HitTokens int `json:"hit_tokens"`
	Groups    []struct{ Load string }
	Results   string // of prefetch
	Loaded    int
	Errors    []struct{ Path, Error string }
}

// decodeJSON fails if the answer is a refusal.
func decodeJSON(answer []byte) (a jsonAnswer) {
	if must(json.Unmarshal(answer, &a)); a.Error != "" {
		must(errors.New(a.Error))
	}
	return a
}

const (
	opExists     = 1
	opLongestHit = 2
)

// binaryQuery makes a binary request: of exists with a group, or of longest_hit with the name of a spec. The hashes are
// written as bytes.
func binaryQuery(op byte, subject string, hashes []string, tokens int) []byte {
	const header, hashBytes = 32, 32
	out := make([]byte, header, header+len(subject)+len(hashes)*hashBytes)
	copy(out, "KVQ1")
	out[4] = op
	binary.LittleEndian.PutUint16(out[6:], hashBytes)
	binary.LittleEndian.PutUint32(out[8:], uint32(len(hashes)))
	binary.LittleEndian.PutUint16(out[16:], uint16(len(subject)))
	binary.LittleEndian.PutUint32(out[24:], uint32(tokens))
	out = append(out, subject...)
	for _, h := range hashes {
		out = get(hex.AppendDecode(out, []byte(h)))
	}
	return out
}

// decodeBinary checks the head of a binary answer. It returns its numbers and the rest.
func decodeBinary(answer []byte) (numbers [5]int, rest []byte) {
	const header = 24
	if len(answer) < header || string(answer[:4]) != "KVA1" {
		must(fmt.Errorf("not an answer: %.80q", answer))
	}
	for i := range numbers {
		numbers[i] = int(binary.LittleEndian.Uint32(answer[4+4*i:]))
	}
	return numbers, answer[header:]
}

func wantStates(states, hits, names, want int) {
	if states != names || hits != want {
		must(fmt.Errorf("%d states and %d hits, want %d and %d", states, hits, names, want))
	}
}

func checkExistsJSON(answer []byte, names, want int) {
	a := decodeJSON(answer)
	wantStates(len(a.States), a.Hits, names, want)
}

func checkExistsBinary(answer []byte, names, want int) {
	numbers, states := decodeBinary(answer)
	if numbers[4] != len(states) {
		must(fmt.Errorf("%d bytes of states, but %d are told", len(states), numbers[4]))
	}
	wantStates(len(states), numbers[0], names, want)
}

// wantHit checks an answer to longest_hit: the tokens, and how many blocks of each group are to be read.
func wantHit(tokens, want int, loads []string, blocks []int) {
	var got []int
	for _, load := range loads {
		sum := 0
		for _, b := range []byte(load) {
			sum += int(b - '0')
		}
		got = append(got, sum)
	}
	if tokens != want || !slices.Equal(got, blocks) {
		must(fmt.Errorf("a hit of %d tokens, blocks %v to be read, want %d, %v", tokens, got, want, blocks))
	}
}

func checkHitJSON(answer []byte, want int, blocks []int) {
	a := decodeJSON(answer)
	var loads []string
	for _, g := range a.Groups {
		loads = append(loads, g.Load)
	}
	wantHit(a.HitTokens, want, loads, blocks)
}

func checkHitBinary(answer []byte, want int, blocks []int) {
	numbers, rest := decodeBinary(answer)
	var loads []string
	for range numbers[4] {
		if len(rest) < 4 || len(rest)-4 < int(binary.LittleEndian.Uint32(rest)) {
			must(fmt.Errorf("the answer ends in group %d", len(loads)))
		}
		n := 4 + int(binary.LittleEndian.Uint32(rest))
		loads = append(loads, string(rest[4:n]))
		rest = rest[n:]
	}
	wantHit(numbers[0], want, loads, blocks)
}
