package config

// Config is the whole configuration. Load makes it; it is not changed after
// that and may be read from any goroutine.
type Config struct {
	Mode         string           `kvfs:"mode" enum:"embedded|standalone-store" default:"embedded" help:"How the process takes part. embedded: it contributes memory and mounts. standalone-store: it contributes nothing and uses the owner on its machine."`
	Memory       Memory           `kvfs:"memory" help:"The primary tier: host memory."`
	Groups       map[string]Group `kvfs:"groups" help:"Rules for single groups (first path component below the mount). Files and inline JSON only."`
	Mount        Mount            `kvfs:"mount" help:"The FUSE mount."`
	DrainTimeout Duration         `kvfs:"drain_timeout" default:"30s" help:"How long a stop waits for requests under way, at most 1s in this version. Zero does not wait."`
	Disk         []Disk           `kvfs:"disk" sep:";" help:"SSD tiers, fastest first."`
	Join         []string         `kvfs:"join" example:"10.0.0.1:7946,10.0.0.2:7946" help:"Addresses of peers to join, host or host:port."`
	Bind         string           `kvfs:"bind" example:"0.0.0.0:7946" help:"Address on which to listen for peers, host or host:port."`
	Advertise    string           `kvfs:"advertise" example:"10.0.0.3:7946" help:"Address that peers should use to reach this one, host or host:port."`
	NodeName     string           `kvfs:"node_name" example:"gpu-7" help:"Name of this peer, unique in the cluster. Empty means the host name."`
	Replicas     int              `kvfs:"replicas" default:"0" min:"0" max:"16" help:"Number of peers that receive a copy of each block that is written."`
	Insecure     bool             `kvfs:"insecure" default:"false" help:"Allow peers without keys on an address that is not loopback."`
	HTTP         string           `kvfs:"http" example:"127.0.0.1:9100" check:"hostport" help:"Address for /readyz and /status over HTTP, host:port. Empty means off."`
	Log          Log              `kvfs:"log" help:"Logging, to standard error."`

	origins map[string]Origin // by path; absent means default
}

// Memory configures the primary tier.
type Memory struct {
	Size          Size    `kvfs:"size" example:"64GiB" auto:"a quarter of RAM" help:"Capacity for blocks. The default is rounded down to MiB, at least 64MiB."`
	Policy        string  `kvfs:"policy" enum:"lru|arc|s3fifo" default:"lru" help:"Eviction order."`
	HighWatermark float64 `kvfs:"high_watermark" above:"0" max:"1" default:"0.98" help:"Eviction starts when this share of the size is used."`
	LowWatermark  float64 `kvfs:"low_watermark" above:"0" max:"1" default:"0.95" help:"Eviction stops when this share of the size is used. Must be below high_watermark."`
	Headroom      Size    `kvfs:"headroom" default:"0" help:"Memory beyond the size that the file system behind it may use, so that a write never ends short. Zero means automatic."`
	Dir           string  `kvfs:"dir" example:"/dev/shm/kvfs" help:"Directory for the blocks, on a tmpfs. Empty means automatic: an own tmpfs as root, else a directory in /dev/shm."`
	Huge          string  `kvfs:"huge" enum:"never|within_size|always|advise" default:"within_size" help:"Huge pages of an own tmpfs, as in mount -o huge."`
	Keep          bool    `kvfs:"keep" default:"false" help:"Keep the blocks in memory after a clean stop, for the next start to adopt."`
	Passthrough   string  `kvfs:"passthrough" enum:"auto|on|off" default:"auto" help:"Let the kernel read and write open blocks by itself (FUSE passthrough). on fails where it is not possible."`
}

// Group configures one group.
type Group struct {
	Pinned    bool `kvfs:"pinned" example:"true" default:"false" help:"Never evict the blocks of the group."`
	Quota     Size `kvfs:"quota" example:"16GiB" default:"0" help:"Most bytes that the group may hold. Zero means no limit."`
	BlockSize Size `kvfs:"block_size" default:"0" help:"Size of the group's blocks. Zero means to learn it from the first ones."`
}

// Mount configures the FUSE mount.
type Mount struct {
	AllowOther   string   `kvfs:"allow_other" enum:"auto|on|off" default:"auto" help:"Let other users in, by modes and owners. auto means on as root, else off."`
	WriteTimeout Duration `kvfs:"write_timeout" default:"5s" help:"How long a write waits for memory to be freed before it fails with ENOSPC. Zero does not wait."`
	LookupLease  Duration `kvfs:"lookup_lease" default:"30s" help:"How long a block stays readable after a successful look-up."`
	EntryTimeout Duration `kvfs:"entry_timeout" default:"60s" help:"How long the kernel may keep a name. Removals are announced to it at once."`
	AttrTimeout  Duration `kvfs:"attr_timeout" default:"60s" help:"How long the kernel may keep attributes."`
	TempPatterns []string `kvfs:"temp_patterns" check:"pattern" default:"*.tmp,*.tmp.*,.tmp*,tmp/" help:"Names that are temporary until they are renamed; a pattern that ends in a slash names a directory."`
	TempExpiry   Duration `kvfs:"temp_expiry" default:"1h" help:"Age at which a temporary file that nobody has open is removed. Zero means never."`
	MaxWrite     Size     `kvfs:"max_write" min:"4KiB" max:"1MiB" default:"1MiB" help:"Largest single write request of the kernel."`
	FSName       string   `kvfs:"fs_name" check:"fsname" default:"kvfs" help:"Name of the file system in mount tables."`
}

// Disk configures one SSD tier.
type Disk struct {
	Path string `kvfs:"path" example:"/mnt/nvme0/kvfs" required:"true" help:"Directory for the tier's files."`
	Size Size   `kvfs:"size" example:"100GiB" required:"true" min:"1MiB" help:"Capacity for blocks."`
}

// Log configures logging.
type Log struct {
	Level       string `kvfs:"level" enum:"debug|info|warn|error" default:"info" help:"Least severe level that is logged."`
	Format      string `kvfs:"format" enum:"console|json" default:"console" help:"Form of the log lines."`
	TierSummary bool   `kvfs:"tier_summary" default:"false" help:"Log one structured line a batch with the keys and bytes by tier."`
}

// Values of Mode.
const (
	ModeEmbedded        = "embedded"
	ModeStandaloneStore = "standalone-store"
)

// Values of the three-way switches (passthrough, allow_other).
const (
	Auto = "auto"
	On   = "on"
	Off  = "off"
)

// Origin tells where the value at path comes from. Paths are as in files
// ("memory.size", "groups.g0.quota", "disk[0].path"; names with dots or brackets
// are quoted, groups."a.b".quota). One that was never set has the zero Origin,
// which is default.
func (c *Config) Origin(path string) Origin { return c.origins[path] }
