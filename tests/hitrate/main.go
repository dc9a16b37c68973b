// Hitrate replays public traces of requests against the orders of eviction in package policy, and prints what share
// of the requested blocks each order hits. A request looks its blocks up in order, reads up to the first miss, and
// stores the rest. A hit is a block before the first miss: an engine can use no other.
//
//	go run ./tests/hitrate conversation_trace.jsonl synthetic_trace.jsonl
//
// A trace has a JSON object a line, with hash_ids: the blocks of a prompt in their order. Mooncake publishes such
// traces (FAST'25 release). Each request is a burst of its own. The last row is that of an order that knows the trace:
// it evicts the block whose next hit is farthest away, and may evict the newcomer.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/tiers/policy"
)

// blockBytes is the size of a block in the replay. Any other gives the same figures.
const blockBytes = 1 << 20

func main() {
	rooms := flag.String("room", "1000,3000,10000,30000", "numbers of blocks for which there is room")
	flag.Parse()
	if err := run(flag.Args(), *rooms, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hitrate:", err)
		os.Exit(1)
	}
}

func run(traces []string, rooms string, out io.Writer) error {
	var sizes []int
	for text := range strings.SplitSeq(rooms, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 {
			return fmt.Errorf("-room: %q is not a number of blocks", text)
		}
		sizes = append(sizes, n)
	}
	if len(traces) == 0 {
		return fmt.Errorf("name a trace")
	}
	for _, file := range traces {
		requests, err := load(file)
		if err != nil {
			return err
		}
		if err := table(out, filepath.Base(file), requests, sizes); err != nil {
			return err
		}
	}
	return nil
}

// load reads the blocks of each request of a trace.
func load(name string) (requests [][]int, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var request struct {
			Blocks []int `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", name, len(requests)+1, err)
		}
		requests = append(requests, request.Blocks)
	}
	return requests, lines.Err()
}

// table prints the shares of hits of one trace, a line for each order.
func table(out io.Writer, name string, requests [][]int, sizes []int) error {
	total := 0
	for _, blocks := range requests {
		total += len(blocks)
	}
	fmt.Fprintf(out, "%s: %d requests, %d blocks\n\n| order |", name, len(requests), total)
	for _, room := range sizes {
		fmt.Fprintf(out, " %d |", room)
	}
	fmt.Fprintf(out, "\n|---|%s\n", strings.Repeat("---|", len(sizes)))
	row := func(name string, hits func(room int) (int, error)) error {
		fmt.Fprintf(out, "| %s |", name)
		for _, room := range sizes {
			n, err := hits(room)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, " %.4f |", float64(n)/float64(max(total, 1)))
		}
		fmt.Fprintln(out)
		return nil
	}
	for _, name := range []string{"lru", "arc", "mq", "s3fifo"} {
		if err := row("`"+name+"`", func(room int) (int, error) { return replay(name, room, requests) }); err != nil {
			return err
		}
	}
	err := row("optimum", func(room int) (int, error) { return optimum(room, requests), nil })
	fmt.Fprintln(out)
	return err
}

// cache is room for so many blocks, in the order of a policy.
type cache struct {
	order   policy.Policy
	numbers map[int]uint32 // of the blocks that are there
	blocks  []int          // by number
	free    []uint32
}

// replay returns how many blocks are hit.
func replay(name string, room int, requests [][]int) (hits int, err error) {
	order, err := policy.New(name, int64(room)*blockBytes)
	if err != nil {
		return 0, err
	}
	c := &cache{order: order, numbers: map[int]uint32{}, blocks: make([]int, room)}
	for n := range uint32(room) {
		c.free = append(c.free, n)
	}
	for i, blocks := range requests {
		hit, burst := true, policy.Burst(i%65535+1)
		for _, b := range blocks {
			n, there := c.numbers[b]
			if hit = hit && there; hit {
				hits++
			}
			if there {
				c.order.Touch(n, burst)
			} else {
				c.store(b)
				c.order.Follow(c.numbers[b], burst, true)
			}
		}
	}
	return hits, nil
}

// store makes room for a block and enters it.
func (c *cache) store(b int) {
	c.order.Victims(func(n uint32) policy.Verdict {
		if len(c.free) > 0 {
			return policy.Stop
		}
		delete(c.numbers, c.blocks[n])
		c.free = append(c.free, n)
		return policy.Evict
	})
	n := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.numbers[b], c.blocks[n] = n, b
	c.order.Add(n, uint64(b), blockBytes)
}
