package reuse

// Scales are the sizes of cache, as shares of the present one, for which there are estimates.
var Scales = [...]float64{0.5, 1, 2, 4}

const (
	// maxBlocks bounds a sample. Source: FAST 2015, figure 6: with 8192 names the mean error of the ratio is below 0.01.
	maxBlocks = 8192

	// enoughBlocks is how many blocks a sample should have if the node has them.
	enoughBlocks = maxBlocks / 2

	// wholeBlocks bounds a sample of all names: the reads of a node with more names cost half as much.
	wholeBlocks = 2048

	// window is the number of sampled asks after which older ones count half as much in Ratio.
	window = 8192

	allHashes = 1 << 32
	none      = -1
)

// sample estimates hit ratios for one capacity. The zero value is not ready: see newSample.
type sample struct {
	reach [len(Scales)]int64 // bytes of the caches
	shift uint               // names whose hash is below allHashes>>shift are in the sample

	at     map[uint64]int32 // number in blocks, by key
	blocks []sampled
	free   []int32 // numbers in blocks

	// Positions ascend with the last use.
	order  []int32 // position -> number in blocks, or none
	sums   []int64 // Fenwick tree (1994) of the bytes by position
	oldest int     // no block is at a position before
	next   int     // no block is at it or behind
	bytes  int64   // of all blocks

	asks   uint64 // since New
	hits   [len(Scales)]uint64
	recent struct { // the same of late
		asks     float64
		hits     [len(Scales)]float64
		reads    float64 // part of asks
		expected float64 // what reads would be if the sample had its share of all reads
	}
	all  *totals
	from uint64 // reads that expected has
}

// sampled is a block of a sample.
type sampled struct {
	key   uint64
	bytes int64 // 0: of a name that was asked for and has no block yet
	left  int64 // when the node lost it; 0: it did not, or was asked for since
	hash  uint32
	pos   int32
	asked bool // for a block that was not there
}

// totals are numbers over all names, sampled or not.
type totals struct {
	reads  uint64
	blocks int // that the node has
}

// newSample returns a sample for a capacity.
func newSample(capacity int64, all *totals) *sample {
	s := &sample{at: map[uint64]int32{}, all: all}
	for i, scale := range Scales {
		s.reach[i] = int64(scale * float64(capacity))
	}
	return s
}

// limit is the bound of the hashes of the sample.
func (s *sample) limit() uint64 { return allHashes >> s.shift }

// most is how many names the sample may have.
func (s *sample) most() int {
	if s.shift == 0 {
		return wholeBlocks
	}
	return maxBlocks
}

// share is the share of names in the sample.
func (s *sample) share() float64 { return 1 / float64(uint64(1)<<s.shift) }

// read counts the read of a block. early says that the block is older than the sample.
func (s *sample) read(n Name, bytes int64, early bool) {
	i, ok := s.at[n.Key]
	switch {
	case ok:
		s.recent.reads++
		s.count(s.blocks[i].pos, s.blocks[i].bytes)
	case early:
		s.recent.expected-- // it is among the reads of all names
	default:
		s.recent.reads++
		s.count(none, 0)
	}
	s.use(n, bytes, false)
}

// missed counts the look-up of a name that is not there. left is when the node lost its block, 0 if that is not known.
func (s *sample) missed(n Name) (left int64) {
	i, ok := s.at[n.Key]
	if !ok {
		s.count(none, 0)
		s.use(n, 0, true)
		return 0
	}
	b := s.blocks[i]
	if b.asked {
		return 0
	}
	s.count(b.pos, b.bytes)
	s.use(n, b.bytes, true)
	s.blocks[s.at[n.Key]].left = 0
	return b.left
}

// count counts an ask for a block of a size at a position, or for one that the sample does not have.
func (s *sample) count(pos int32, bytes int64) {
	if s.recent.asks >= window {
		s.fade()
	}
	s.asks++
	s.recent.asks++
	if pos == none || bytes == 0 {
		return
	}
	distance := (s.bytes-s.before(int(pos)))<<s.shift + bytes
	for i, reach := range s.reach {
		if distance <= reach {
			s.hits[i]++
			s.recent.hits[i]++
		}
	}
}

// fade halves the weight of what was counted so far.
func (s *sample) fade() {
	s.expect()
	for i := range s.recent.hits {
		s.recent.hits[i] /= 2
	}
	s.recent.asks /= 2
	s.recent.reads /= 2
	s.recent.expected /= 2
}

// expect brings the number of reads to expect up to date.
func (s *sample) expect() {
	s.recent.expected += float64(s.all.reads-s.from) * s.share()
	s.from = s.all.reads
}

// ratios returns the estimated hit ratios, false if nothing was asked for.
func (s *sample) ratios() (r [len(Scales)]float64, ok bool) {
	more := s.recent.expected - s.recent.reads
	asks := s.recent.asks + more
	if s.recent.asks == 0 || asks <= 0 {
		return r, false
	}
	for i, hits := range s.recent.hits {
		r[i] = min(max((hits+more)/asks, 0), 1)
	}
	return r, true
}

// use moves a block to the front, and enters it if it is new.
func (s *sample) use(n Name, bytes int64, asked bool) {
	i, ok := s.at[n.Key]
	if ok {
		b := &s.blocks[i]
		b.asked = asked
		if int(b.pos) == s.next-1 && b.bytes == bytes {
			return
		}
		s.lift(i)
	} else {
		if i = int32(len(s.blocks)); len(s.free) > 0 {
			i = s.free[len(s.free)-1]
			s.free = s.free[:len(s.free)-1]
		} else {
			s.blocks = append(s.blocks, sampled{})
		}
		s.blocks[i] = sampled{key: n.Key, hash: n.Hash, asked: asked}
		s.at[n.Key] = i
	}
	s.blocks[i].bytes = bytes
	if s.next == len(s.order) {
		s.compact()
	}
	s.place(i)
	s.trim()
}

// place puts a block in front.
func (s *sample) place(i int32) {
	b := &s.blocks[i]
	b.pos = int32(s.next)
	s.order[s.next] = i
	s.add(s.next, b.bytes)
	s.next++
}

// lift takes a block out of the order.
func (s *sample) lift(i int32) {
	b := &s.blocks[i]
	s.add(int(b.pos), -b.bytes)
	s.order[b.pos] = none
}

// forget drops a block.
func (s *sample) forget(i int32) {
	s.lift(i)
	delete(s.at, s.blocks[i].key)
	s.free = append(s.free, i)
}

// trim forgets what is farther back than the largest cache reaches.
func (s *sample) trim() {
	for most := s.reach[len(Scales)-1] >> s.shift; s.bytes > most && s.oldest < s.next-1; s.oldest++ {
		if i := s.order[s.oldest]; i != none {
			s.forget(i)
		}
	}
}

// shrink makes room when the sample is full. A sample of all names becomes one of half of them. Later it first forgets the
// names without a block, then half of all names. If the node has so many blocks that half of the sample is enough of them,
// half is forgotten in any case: otherwise the look-ups of ever new names would fill the sample again and again.
func (s *sample) shrink() {
	if s.shift == 0 {
		s.halve()
		return
	}
	for _, i := range s.order[:s.next] {
		if i != none && s.blocks[i].bytes == 0 {
			s.forget(i)
		}
	}
	if s.all.blocks>>(s.shift+1) >= enoughBlocks {
		s.halve()
	}
	for len(s.at) > s.most()*3/4 {
		s.halve()
	}
}

// halve forgets half of all names.
func (s *sample) halve() {
	s.expect()
	s.shift++
	for _, i := range s.order[:s.next] {
		if i != none && uint64(s.blocks[i].hash) >= s.limit() {
			s.forget(i)
		}
	}
}

// compact moves the blocks to the first positions, of which there are twice as many as blocks then.
func (s *sample) compact() {
	order, n := s.order, 0
	if want := max(2*len(s.at), 64); want > len(order) {
		order = make([]int32, want)
		s.sums = make([]int64, want+1)
	}
	for _, i := range s.order[s.oldest:s.next] {
		if i != none {
			order[n] = i
			s.blocks[i].pos = int32(n)
			n++
		}
	}
	s.order, s.oldest, s.next, s.bytes = order, 0, n, 0
	clear(s.sums)
	for p := 1; p < len(s.sums); p++ {
		if p <= n {
			b := s.blocks[order[p-1]].bytes
			s.bytes += b
			s.sums[p] += b
		}
		if above := p + p&-p; above < len(s.sums) {
			s.sums[above] += s.sums[p]
		}
	}
}

// add adds bytes at a position.
func (s *sample) add(pos int, bytes int64) {
	s.bytes += bytes
	for p := pos + 1; p < len(s.sums); p += p & -p {
		s.sums[p] += bytes
	}
}

// before returns the bytes of a position and all before it.
func (s *sample) before(pos int) (bytes int64) {
	for p := pos + 1; p > 0; p -= p & -p {
		bytes += s.sums[p]
	}
	return bytes
}
