package main

import (
	"encoding/json"
	"io"
	"testing"
	"time"
)

// nodeUnderTest is a node of this process, which a test gives orders.
type nodeUnderTest struct {
	*testing.T
	to   *json.Encoder
	from *json.Decoder
}

func newNodeUnderTest(t *testing.T) *nodeUnderTest {
	orders, in := io.Pipe()
	out, answers := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends with in
		err := try(func() { playRDMA(role{Name: rdmaRole, Path: "127.0.0.1"}, orders, answers) })
		answers.CloseWithError(io.ErrUnexpectedEOF)
		done <- err
	}()
	t.Cleanup(func() {
		in.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &nodeUnderTest{t, json.NewEncoder(in), json.NewDecoder(out)}
}

// ask returns the answer to an order. The caller checks its error.
func (n *nodeUnderTest) ask(o rdmaOrder) rdmaAnswer {
	n.Helper()
	var a rdmaAnswer
	if err := n.to.Encode(o); err != nil {
		n.Fatal(err)
	}
	if err := n.from.Decode(&a); err != nil {
		n.Fatal(err)
	}
	return a
}

func (n *nodeUnderTest) do(o rdmaOrder) rdmaAnswer {
	n.Helper()
	a := n.ask(o)
	if a.Error != "" {
		n.Fatalf("%+v: %s", o, a.Error)
	}
	return a
}

// TestRDMANode shows that two nodes move blocks in both ways, and that bytes are compared.
func TestRDMANode(t *testing.T) {
	if why := noFabric(nil); why != "" {
		t.Skip(why)
	}
	holder, reader := newNodeUnderTest(t), newNodeUnderTest(t)
	offer := holder.do(rdmaOrder{Hold: &rdmaBlocks{Sizes: []int{64 * kib, mib}, Counts: []int{5, 3}}}).Offer
	reader.do(rdmaOrder{Connect: offer})
	reader.do(rdmaOrder{Verify: true})
	for _, way := range []string{tcpWay, fabricWay} {
		a := reader.do(rdmaOrder{Pass: &rdmaPass{Way: way, Size: mib, Depth: 4, Time: time.Millisecond}})
		if a.Rate <= 0 {
			t.Errorf("%s: %v bytes a second", way, a.Rate)
		}
	}
	if a := reader.ask(rdmaOrder{Pass: &rdmaPass{Way: tcpWay, Size: 12345, Depth: 1}}); a.Error == "" {
		t.Error("pass over blocks that are not there: no error")
	}
	// Blocks with a wrong description must not pass for the right ones.
	swapped := *offer
	swapped.Regions = append(swapped.Regions[:0:0], offer.Regions...)
	swapped.Regions[0] = append(swapped.Regions[0][:0:0], offer.Regions[0]...)
	swapped.Regions[0][0], swapped.Regions[0][1] = swapped.Regions[0][1], swapped.Regions[0][0]
	reader.do(rdmaOrder{Connect: &swapped})
	if a := reader.ask(rdmaOrder{Verify: true}); a.Error == "" {
		t.Error("blocks mixed up: not found")
	}
}
