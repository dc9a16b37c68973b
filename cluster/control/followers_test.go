package control

import "testing"

// TestFollowers shows that a few feeds of one name are served, and the oldest ends
// beyond that.
func TestFollowers(t *testing.T) {
	var f Followers
	var leave []func()
	ended := make(chan int, 2*maxFeeds)
	for i := range maxFeeds + 2 {
		leave = append(leave, f.Enter("a", func() { ended <- i }))
	}
	f.Enter("b", func() { ended <- -1 })
	if len(ended) != 2 || <-ended != 0 || <-ended != 1 || f.Count() != 2 {
		t.Errorf("%d more ended, %d peers", len(ended), f.Count())
	}
	for _, fn := range leave {
		fn()
	}
	if f.Count() != 1 {
		t.Errorf("%d peers", f.Count())
	}
}
