package device

import (
	"testing"
	"time"
)

// TestOps shows that each operation has a name of its own, and that no two have the same opcode.
func TestOps(t *testing.T) {
	names, codes := map[string]Op{}, map[uint32]Op{}
	for op := range NumOps {
		if other, twice := names[op.String()]; op.String() == "" || twice {
			t.Errorf("operation %d is named %q, as %d", op, op, other)
		}
		names[op.String()] = op
		for _, code := range ops[op].opcodes {
			if other, twice := codes[code]; twice || opOf(code) != op {
				t.Errorf("opcode %d is %v and %v", code, opOf(code), other)
			}
			codes[code] = op
		}
	}
	for code, want := range map[uint32]Op{opcodeOpen: OpOpen, opcodeRename2: OpRename, opcodeBatchForget: OpForget, opcodeInterrupt: OpOther, 1 << 31: OpOther} {
		if got := opOf(code); got != want {
			t.Errorf("opcode %d is %v, want %v", code, got, want)
		}
	}
}

// TestLatencies shows that All has the calls of all shards, and nothing of other operations.
func TestLatencies(t *testing.T) {
	var l Latencies
	for range 3 * latencyShards {
		l.shard()[OpOpen].Observe(time.Millisecond)
		l.Observe(OpOpen, time.Millisecond)
	}
	seen := 0
	for op, c := range l.All() {
		seen++
		if want := uint64(6 * latencyShards); op != OpOpen || c.Total() != want || c.Sum != time.Duration(want)*time.Millisecond {
			t.Errorf("%v: %d in %v", op, c.Total(), c.Sum)
		}
	}
	if seen != 1 {
		t.Errorf("%d operations, want 1", seen)
	}
}
