package fabric

// Stats is what a Transport has counted since it was opened.
type Stats struct {
	Peers       int64 `json:"peers" help:"peers with an address of RDMA"`
	Reads       int64 `json:"reads" help:"messages that completed; a striped read is several" kind:"counter"`
	ReadBytes   int64 `json:"read_bytes" help:"bytes read by all rails" kind:"counter"`
	Failed      int64 `json:"failed_reads" help:"messages that failed" kind:"counter"`
	Stalls      int64 `json:"stalls" help:"endpoints closed because nothing moved" kind:"counter"`
	Registered  int64 `json:"registrations" help:"registrations of memory" kind:"counter"`
	CacheHits   int64 `json:"cache_hits" help:"registrations that the cache saved" kind:"counter"`
	Regions     int64 `json:"regions" help:"regions registered now"`
	PinnedBytes int64 `json:"pinned_bytes" help:"memory registered now, with the cache"`
	CachedBytes int64 `json:"cached_bytes" help:"part of 'pinned_bytes' that the cache keeps"`

	RailBytes []int64 `json:"rail_bytes" help:"bytes read by each rail" kind:"counter"`
}

// Library is the libfabric that this process has opened.
type Library struct {
	Path    string `json:"path"`    // as it was opened: a soname or a path
	Version string `json:"version"` // "2.1"
}
