package fabric

// Stats is what a Transport has counted since it was opened.
type Stats struct {
	Peers       int64 `json:"peers"`
	Reads       int64 `json:"reads"`         // messages that completed; a striped read is several
	ReadBytes   int64 `json:"read_bytes"`    // by all rails
	Failed      int64 `json:"failed_reads"`  // messages
	Stalls      int64 `json:"stalls"`        // endpoints closed because nothing moved
	Registered  int64 `json:"registrations"` // registrations made; of regions and of destinations
	CacheHits   int64 `json:"cache_hits"`
	Regions     int64 `json:"regions"`      // open now
	PinnedBytes int64 `json:"pinned_bytes"` // registered now, with the cache
	CachedBytes int64 `json:"cached_bytes"`

	RailBytes []int64 `json:"rail_bytes"` // of ReadBytes, by rail
}

// Library is the libfabric that this process has opened.
type Library struct {
	Path    string `json:"path"`    // as it was opened: a soname or a path
	Version string `json:"version"` // "2.1"
}
