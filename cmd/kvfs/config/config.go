package config

import "github.com/kvfs/kvfs/tiers/hybrid"

// Config is the whole configuration. Load makes it; it is not changed after
// that and may be read from any goroutine.
type Config struct {
	Mode         string                 `kvfs:"mode" enum:"embedded|standalone-store" default:"embedded" help:"How the process takes part. embedded: it contributes memory and mounts. standalone-store: it contributes nothing and uses the owner on its machine."`
	Memory       Memory                 `kvfs:"memory" help:"The primary tier: host memory."`
	Groups       map[string]Group       `kvfs:"groups" names:"group" example:"g0" help:"Rules for single groups (first path component below the mount). Files and inline JSON only."`
	Mount        Mount                  `kvfs:"mount" help:"The FUSE mount."`
	Store        Store                  `kvfs:"store" help:"The owner of memory and disk on a machine, kvfs serve, and how mounts of mode standalone-store reach it."`
	DrainTimeout Duration               `kvfs:"drain_timeout" default:"30s" help:"How long a stop waits for blocks on their way to the SSD, and, for at most 1s of it, for requests under way. Zero does not wait."`
	Disk         Disk                   `kvfs:"disk" help:"The SSD tier, below memory. Off unless it has directories. Mode standalone-store excludes it."`
	Tiers        []Tier                 `kvfs:"tiers" files:"only" help:"The tiers in their order, fastest first, and tiers of further types. Without a list the order is memory, disk, peers. With one, memory is still the first and peers are the last, and a disk that is not listed comes right after memory. Look-ups and counters report a tier of a further type as disk. Files and inline JSON only."`
	Promotion    Promotion              `kvfs:"promotion" help:"How blocks come up into memory from the tiers below it."`
	Staging      Staging                `kvfs:"staging" help:"Aligned buffers for blocks that a tier cannot move in place: small ones, and unaligned ends."`
	DirectIO     DirectIO               `kvfs:"directio" help:"How the SSD tier reads and writes past the page cache."`
	Specs        map[string]hybrid.Spec `kvfs:"specs" names:"spec" example:"gemma" help:"The attention groups of models, by a name for each, for requests about prompts; see the control directory. Files and inline JSON only."`
	Control      Control                `kvfs:"control" help:"Who may use the control files query, prefetch, specs and events, beside root and the user of the daemon. Read when the daemon starts."`
	Events       Events                 `kvfs:"events" help:"What happens to blocks, for others to follow."`

	Bind             string   `kvfs:"bind" check:"listen" example:"0.0.0.0:7946" help:"Address on which to listen for peers, host or host:port; the port is 7946 if it is left out. Empty means no peers. One that is not loopback demands tls and peer.gossip_keys, or insecure."`
	Join             []string `kvfs:"join" check:"address" example:"10.0.0.1:7946,10.0.0.2:7946" help:"Addresses of peers to join, host or host:port. A name stands for all of its addresses."`
	Advertise        string   `kvfs:"advertise" check:"address" example:"10.0.0.3:7946" help:"Address that peers should use to reach this one, host or host:port. Empty means that of bind, or of the machine if that is a wildcard."`
	NodeName         string   `kvfs:"node_name" check:"name" auto:"the host name" example:"gpu-7" help:"Name of this peer, unique in the cluster. 1 to 64 letters, digits, dots, dashes and underscores."`
	Zone             string   `kvfs:"zone" check:"name" example:"rack-1" help:"Where this peer stands, in a word. Peers of the same zone are asked first."`
	Replicas         int      `kvfs:"replicas" default:"0" min:"0" max:"16" help:"Number of peers that receive a copy of each block that is written."`
	PreferredSegment string   `kvfs:"preferred_segment" env:"weak" example:"10.0.0.2:7946" help:"Peer that receives the first copy of each block if it can, as its node_name or host:port. One that is malformed or not there is a warning, and no preference. Here a file wins over the environment."`
	Insecure         bool     `kvfs:"insecure" default:"false" help:"Allow peers without keys and certificates on an address that is not loopback. Whoever reaches it can then read, write and remove blocks. It allows events.zmq such an address, too."`
	Peer             Peer     `kvfs:"peer" help:"The traffic with peers. Off without bind."`
	RDMA             RDMA     `kvfs:"rdma" help:"RDMA between peers: their memory is read by network cards that can. See peer.transport, which turns it on and off."`
	TLS              TLS      `kvfs:"tls" help:"Certificates with which peers know each other, in PEM: all three files or none. Changed files are taken over without a restart. kvfs certs init makes them."`
	Readdir          Readdir  `kvfs:"readdir" help:"What ls shows."`

	HTTP string `kvfs:"http" example:"127.0.0.1:9100" check:"hostport" help:"Address for /readyz and /status over HTTP, host:port. Empty means off."`
	Log  Log    `kvfs:"log" help:"Logging, to standard error."`

	// Warnings are lines for the log: about variables of other programs that were taken
	// for settings, or that were not, and about settings without effect.
	Warnings []string

	origins map[string]Origin // by path; absent means default
}

// Store configures the way between the owner of a machine and its mounts.
type Store struct {
	Socket       string   `kvfs:"socket" check:"socket" example:"/run/kvfs/0/store.sock" auto:"/run/kvfs/UID/store.sock; of users other than root $XDG_RUNTIME_DIR/kvfs/store.sock where that is set" help:"Path of the unix socket of the owner, from the root. Its directory is open to the owner's user alone."`
	OwnerTimeout Duration `kvfs:"owner_timeout" default:"30s" help:"How long operations wait for an owner that is gone, as during a restart, before they fail. Zero does not wait."`
}

// Memory configures the primary tier.
type Memory struct {
	Size          Size    `kvfs:"size" example:"64GiB" auto:"a quarter of RAM" help:"Capacity for blocks. The default is rounded down to MiB, at least 64MiB; RAM is the memory limit of the control group (cgroup v1 or v2) where that is less. Mode embedded needs more than 0, and mode standalone-store excludes it."`
	Policy        string  `kvfs:"policy" enum:"lru|arc|s3fifo" default:"lru" help:"Eviction order."`
	HighWatermark float64 `kvfs:"high_watermark" above:"0" max:"1" default:"0.98" help:"Eviction starts when this share of the size is used."`
	LowWatermark  float64 `kvfs:"low_watermark" above:"0" max:"1" default:"0.95" help:"Eviction stops when this share of the size is used. Must be below high_watermark."`
	Headroom      Size    `kvfs:"headroom" default:"0" help:"Memory beyond the size that the file system behind it may use, so that a write never ends short. Zero means automatic."`
	Dir           string  `kvfs:"dir" example:"/dev/shm/kvfs" help:"Directory for the blocks, on a tmpfs. Empty means automatic: an own tmpfs as root, else a directory in /dev/shm."`
	Huge          string  `kvfs:"huge" enum:"never|within_size|always|advise" default:"within_size" help:"Huge pages of an own tmpfs, as in mount -o huge."`
	NUMA          string  `kvfs:"numa" check:"numa" example:"bind:0" help:"NUMA nodes for the blocks, as in mount -o mpol: bind:NODES, prefer:NODE, interleave, interleave:NODES or local. Takes an own tmpfs, so root. Empty means the policy of the process that writes."`
	Keep          bool    `kvfs:"keep" default:"false" help:"Keep the blocks in memory after a clean stop, for the next start to adopt."`
	Passthrough   string  `kvfs:"passthrough" enum:"auto|on|off" default:"auto" help:"Let the kernel read and write open blocks by itself (FUSE passthrough). on fails where it is not possible."`
}

// Group configures one group.
type Group struct {
	Pinned       bool     `kvfs:"pinned" example:"true" default:"false" help:"Never evict the blocks of the group."`
	Quota        Size     `kvfs:"quota" example:"16GiB" default:"0" help:"Most bytes that the group may hold. Zero means no limit."`
	BlockSize    Size     `kvfs:"block_size" default:"0" help:"Size of the group's blocks. Zero means to learn it from the first ones."`
	Strict       bool     `kvfs:"strict" default:"false" help:"Commit nothing but blocks of block_size, which it needs: else close, fsync and rename fail with EINVAL, and the name keeps its previous version. Without effect on a pinned group."`
	OpenDeadline Duration `kvfs:"open_deadline" example:"20ms" default:"0s" help:"As promotion.open_deadline, for blocks of this group. Zero means that one."`
}

// Mount configures the FUSE mount.
type Mount struct {
	AllowOther    string   `kvfs:"allow_other" enum:"auto|on|off" default:"auto" help:"Let other users in, by modes and owners. auto means on as root, else off."`
	WriteTimeout  Duration `kvfs:"write_timeout" default:"5s" help:"How long a write waits for memory to be freed before it fails with ENOSPC. Zero does not wait."`
	LookupLease   Duration `kvfs:"lookup_lease" default:"30s" help:"How long a block stays readable after a successful look-up."`
	EntryTimeout  Duration `kvfs:"entry_timeout" default:"60s" help:"How long the kernel may keep a name. Removals are announced to it at once."`
	AttrTimeout   Duration `kvfs:"attr_timeout" default:"60s" help:"How long the kernel may keep attributes."`
	TempPatterns  []string `kvfs:"temp_patterns" check:"pattern" default:"*.tmp,*.tmp.*,.tmp*,tmp/" help:"Names that are temporary until they are renamed; a pattern that ends in a slash names a directory."`
	PlainPatterns []string `kvfs:"plain_patterns" check:"filename" default:"*.lock,*.lck,*.pid" help:"Names of files that are POSIX from the first byte and stay in memory, as lock files are."`
	TempExpiry    Duration `kvfs:"temp_expiry" default:"1h" help:"Age at which a temporary file that nobody has open is removed. Zero means never."`
	MaxWrite      Size     `kvfs:"max_write" min:"4KiB" max:"1MiB" default:"1MiB" help:"Largest single write request of the kernel."`
	FSName        string   `kvfs:"fs_name" check:"fsname" default:"kvfs" help:"Name of the file system in mount tables."`
}

// Disk configures the SSD tier.
type Disk struct {
	Dirs             []DiskDir `kvfs:"dirs" name:"disk" sep:";" help:"Directories of the SSD tier, one a device; blocks are spread over them."`
	Policy           string    `kvfs:"policy" enum:"lru|arc|s3fifo" default:"lru" help:"Eviction order."`
	Cascade          string    `kvfs:"cascade" enum:"async|sync|on_evict|off" default:"async" help:"When a committed block is copied to the SSD. async: soon after the commit. sync: close or rename waits until it is there. on_evict: when it is to leave memory. off: only by fsync."`
	CascadeQueue     Size      `kvfs:"cascade_queue" default:"0" help:"Most bytes that wait to be copied to the SSD; what comes on top stays in memory alone. Zero means automatic: a quarter of memory.size, at most 1GiB."`
	Admission        string    `kvfs:"admission" enum:"all|second_hit" default:"all" help:"Which blocks are copied to the SSD. all: each one. second_hit: one that is stored or read a second time."`
	DailyWriteBudget Size      `kvfs:"daily_write_budget" default:"0" help:"Most bytes that are written to all directories together in a day (UTC), so that the devices are not worn out. fsync may exceed it. Zero means no limit."`
	SlabSize         Size      `kvfs:"slab_size" min:"1MiB" max:"1TiB" multiple:"4KiB" default:"256MiB" help:"Size of the files that hold the blocks. It counts for those that are made from now on; a directory too small for 16 of them gets smaller ones."`
	SyncBytes        Size      `kvfs:"sync_bytes" above:"0" default:"64MiB" help:"Bytes written to a directory after which they are made durable together."`
	SyncInterval     Duration  `kvfs:"sync_interval" above:"0" default:"1s" help:"Time after which they are in any case."`
	ScrubRate        Size      `kvfs:"scrub_rate" default:"16MiB" help:"Bytes a second that are read of each directory to find bad copies before a reader does. Zero means off."`
	StuckTimeout     Duration  `kvfs:"stuck_timeout" above:"0" default:"30s" help:"Time without an answer after which a device counts as failed and its directory goes offline."`
}

// DiskDir is one directory of the SSD tier.
type DiskDir struct {
	Path string `kvfs:"path" example:"/mnt/nvme0/kvfs" required:"true" help:"Directory, made if it is absent; a relative path counts from the working directory. It may not hold another one, nor memory.dir."`
	Size Size   `kvfs:"size" example:"100GiB" required:"true" min:"1MiB" help:"Most bytes of the files in it."`
}

// Promotion configures how blocks come up into memory.
type Promotion struct {
	On           string   `kvfs:"on" enum:"open|lookup" default:"open" help:"What makes a block come up: its open, or already a look-up that finds it (stat, access)."`
	Timeout      Duration `kvfs:"timeout" default:"30s" help:"How long an open waits for its block before it is a miss. Zero does not wait."`
	BatchKeys    int      `kvfs:"batch_keys" default:"64" min:"1" help:"Most blocks of one request that are loaded as one batch."`
	BatchBytes   Size     `kvfs:"batch_bytes" default:"8MiB" above:"0" help:"Most bytes of such a batch, unless one block alone is larger."`
	Window       Duration `kvfs:"window" default:"0s" help:"How long a batch waits for more blocks of the same request. Zero means that it takes what is there."`
	OpenDeadline Duration `kvfs:"open_deadline" default:"0s" help:"An open of a block that is not in memory, and that would probably take or takes longer than this, is a miss (ENOENT) early. Zero means none. groups.NAME.open_deadline is for one group."`
}

// Control says who may use control files.
type Control struct {
	Users []string `kvfs:"users" example:"vllm" help:"Users, by name or number. They are told only of blocks that they may read."`
	Group string   `kvfs:"group" example:"kv-readers" help:"Group, by name or number. Its members are told only of blocks that they may read."`
}

// Staging configures the aligned buffers.
type Staging struct {
	Size        Size    `kvfs:"size" min:"1MiB" default:"64MiB" help:"Memory for the buffers."`
	UsableRatio float64 `kvfs:"usable_ratio" above:"0" max:"1" default:"0.9" help:"Share of the size that blocks may take up. With an SSD tier it must come to at least 1MiB, and to the largest groups.NAME.block_size with its padding."`
}

// DirectIO configures input and output past the page cache.
type DirectIO struct {
	Engine   string `kvfs:"engine" enum:"auto|io_uring|pread" default:"auto" help:"Kernel interface. auto: io_uring where it works, else pread. io_uring fails where it does not."`
	InFlight Size   `kvfs:"in_flight" above:"0" default:"8MiB" help:"Most bytes that are asked of one device at a time."`
	Chunk    Size   `kvfs:"chunk" min:"4KiB" max:"1GiB" multiple:"4KiB" default:"1MiB" help:"Largest single read or write. Must not exceed in_flight."`
}

// Log configures logging.
type Log struct {
	Level       string `kvfs:"level" enum:"debug|info|warn|error" default:"info" help:"Least severe level that is logged."`
	Format      string `kvfs:"format" enum:"console|json" default:"console" help:"Form of the log lines."`
	TierSummary bool   `kvfs:"tier_summary" default:"false" help:"Log one structured line for each batch of blocks, with its keys and bytes by the tier that had them."`
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

// AdmitSecondHit is a value of Disk.Admission.
const AdmitSecondHit = "second_hit"

// PromoteOnLookup is a value of Promotion.On.
const PromoteOnLookup = "lookup"

// Origin tells where the value at path comes from. Paths are as in files
// ("memory.size", "groups.g0.quota", "disk.dirs[0].path"; names with dots or brackets
// are quoted, groups."a.b".quota). One that was never set has the zero Origin,
// which is default.
func (c *Config) Origin(path string) Origin { return c.origins[path] }
