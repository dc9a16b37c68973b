package config

import (
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// Config is the whole configuration. Load makes it; it is not changed after that and may be read from any goroutine.
type Config struct {
	Mode         string                 `kvfs:"mode" short:"Tiers" enum:"embedded|standalone-store" default:"embedded" help:"Mode of the process. embedded: it has its own memory, and mounts. standalone-store: it has no memory of its own and uses the owner on its machine."`
	Memory       Memory                 `kvfs:"memory" help:"The primary tier: host memory."`
	Groups       map[string]Group       `kvfs:"groups" names:"group" example:"g0" help:"Rules for single groups (first path component below the mount). Files and inline JSON only."`
	Mount        Mount                  `kvfs:"mount" help:"The FUSE mount."`
	Store        Store                  `kvfs:"store" help:"The owner of memory and disk on a machine (kvfs serve), and how mounts of mode standalone-store reach it."`
	DrainTimeout scalar.Duration        `kvfs:"drain_timeout" case:"tests/mount TestDiskStopDrains waits for a long queue" default:"30s" help:"How long a stop waits for blocks on their way to the SSD. At most 1s of it is for requests under way. Zero does not wait."`
	CatchUpRate  scalar.Size            `kvfs:"catch_up_rate" case:"tests/object TestCatchUp copies what the bucket missed" default:"128MiB" help:"Bytes a second of blocks that a tier missed while it was away, and gets when it is back, oldest first. Zero means no limit."`
	Disk         Disk                   `kvfs:"disk" help:"The SSD tier, below memory. Off unless it has directories. Mode standalone-store excludes it."`
	Tiers        []Tier                 `kvfs:"tiers" files:"only" help:"The tiers in their order, fastest first, and tiers of further types. Without a list the order is memory, disk, peers. In a list memory is first and peers are last; a disk that is not listed comes right after memory. Look-ups and counters report a tier of a further type, other than object, as disk. Files and inline JSON only."`
	Promotion    Promotion              `kvfs:"promotion" help:"How blocks come up into memory from the tiers below it."`
	Staging      Staging                `kvfs:"staging" help:"Aligned buffers for blocks that a tier cannot move in place: small ones, and unaligned ends."`
	DirectIO     DirectIO               `kvfs:"directio" help:"How the SSD tier reads and writes past the page cache."`
	Specs        map[string]hybrid.Spec `kvfs:"specs" names:"spec" example:"gemma" help:"The attention groups of models, each under a name, for requests about prompts; see the control directory. Files and inline JSON only."`
	Control      Control                `kvfs:"control" help:"Users that may use the control files query, prefetch, specs and events, besides root and the user of the daemon. kvfs reads this when the daemon starts."`
	Events       Events                 `kvfs:"events" help:"Events of blocks, for other programs."`

	Bind             string   `kvfs:"bind" short:"Peers" check:"listen" example:"0.0.0.0:7946" help:"Address on which to listen for peers, host or host:port. The default port is 7946. Empty means no peers. An address that is not loopback needs tls and peer.gossip_keys, or insecure."`
	Join             []string `kvfs:"join" short:"Peers" check:"address" example:"10.0.0.1:7946,10.0.0.2:7946" help:"Addresses of peers to join, host or host:port. A name stands for all of its addresses."`
	Advertise        string   `kvfs:"advertise" check:"address" example:"10.0.0.3:7946" help:"Address at which peers reach this one, host or host:port. Empty means that of bind, or that of the machine if bind is a wildcard."`
	NodeName         string   `kvfs:"node_name" short:"Peers" check:"name" auto:"the host name" example:"gpu-7" help:"Name of this peer, unique in the cluster. 1 to 64 letters, digits, dots, dashes and underscores."`
	Zone             string   `kvfs:"zone" check:"name" example:"rack-1" help:"Location of this peer, in a word. Peers of the same zone are asked first, and a block that many of them want crosses into it once."`
	Replicas         int      `kvfs:"replicas" short:"Peers" default:"0" min:"0" max:"16" help:"Number of peers that receive a copy of each block that is written."`
	PreferredSegment string   `kvfs:"preferred_segment" env:"weak" example:"10.0.0.2:7946" help:"Peer that receives the first copy of each block if it can, as its node_name or host:port. A malformed or absent peer gives a warning and no preference. For this setting a file wins over the environment."`
	Insecure         bool     `kvfs:"insecure" short:"Peers" default:"false" help:"Allow peers without keys and certificates on an address that is not loopback. Every machine that reaches it can then read, write and remove blocks. The setting also allows events.zmq such an address."`
	Peer             Peer     `kvfs:"peer" help:"The traffic with peers. Off without bind."`
	RDMA             RDMA     `kvfs:"rdma" help:"RDMA between peers: network cards read the memory of peers directly. peer.transport turns it on and off."`
	TLS              TLS      `kvfs:"tls" help:"Certificates with which peers identify themselves, in PEM: all three files or none. kvfs uses changed files without a restart. kvfs certs init makes them."`
	Readdir          Readdir  `kvfs:"readdir" help:"What ls shows."`

	HTTP          string `kvfs:"http" short:"Logs and status" example:"127.0.0.1:9100" check:"hostport" help:"Address for /metrics, /healthz, /readyz and /status over HTTP, host:port. Empty means off."`
	HTTPTokenFile string `kvfs:"http_token_file" holds:"path" example:"/etc/kvfs/http.token" help:"File with the token that opens the web page at / of http. Only root or the user of the daemon, and its group, may read it. kvfs makes an absent file with a random token. Empty means no page."`
	OTLP          string `kvfs:"otlp" check:"url" example:"http://127.0.0.1:4318" help:"URL of an OpenTelemetry collector that takes OTLP over HTTP. kvfs sends it spans of the requests whose name is a traceparent. Empty means off."`
	Log           Log    `kvfs:"log" help:"Logging, to standard error."`

	// Warnings are lines for the log: about variables of other programs that were taken
	// for settings, or that were not, and about settings without effect.
	Warnings []string

	origins map[string]Origin // by path; absent means default
}

// Store configures the way between the owner of a machine and its mounts.
type Store struct {
	Socket       string          `kvfs:"socket" holds:"path" short:"Tiers" check:"socket" example:"/run/kvfs/0/store.sock" auto:"/run/kvfs/UID/store.sock; of users other than root $XDG_RUNTIME_DIR/kvfs/store.sock where that is set" help:"Absolute path of the unix socket of the owner. Only the owner's user may open its directory."`
	OwnerTimeout scalar.Duration `kvfs:"owner_timeout" default:"30s" help:"How long operations wait for the next owner, as during a restart, before they fail. Zero does not wait."`
}

// Memory configures the primary tier.
type Memory struct {
	Size          scalar.Size     `kvfs:"size" short:"Tiers" example:"64GiB" auto:"a quarter of RAM" help:"Capacity for blocks. The default is rounded down to MiB, at least 64MiB. RAM is the memory limit of the control group (cgroup v1 or v2) if that is lower. Mode embedded needs more than 0; mode standalone-store excludes it."`
	Policy        string          `kvfs:"policy" short:"Tiers" enum:"lru|arc|mq|s3fifo" default:"lru" help:"Eviction order."`
	BurstGap      scalar.Duration `kvfs:"burst_gap" case:"tests/mount TestChain stores a chain on a machine that is busy" default:"100ms" help:"Longest pause within a burst of uses by one process. Of a burst the last block is evicted first, in memory and on the SSD. Zero: the policy alone decides."`
	HighWatermark float64         `kvfs:"high_watermark" case:"tests/control TestWhyEvicted tells an eviction of a full memory from an early one" above:"0" max:"1" default:"0.98" help:"Eviction starts when this share of the size is used."`
	LowWatermark  float64         `kvfs:"low_watermark" case:"tests/control TestWhyEvicted evicts much at a time" above:"0" max:"1" default:"0.95" help:"Eviction stops when this share of the size is used. Must be below high_watermark."`
	Headroom      scalar.Size     `kvfs:"headroom" case:"tests/takeover TestTakeoverFull fills a small memory to its end" default:"0" help:"Memory beyond the size that the file system below may use, so that a write never ends short. Zero means automatic."`
	Dir           string          `kvfs:"dir" holds:"path" example:"/dev/shm/kvfs" help:"Directory for the blocks, on a tmpfs. Empty means automatic: kvfs's own tmpfs as root, else a directory in /dev/shm."`
	Huge          string          `kvfs:"huge" case:"tests/mount TestMatrix runs without huge pages" enum:"never|within_size|always|advise" default:"within_size" help:"Huge pages of kvfs's own tmpfs, as in mount -o huge."`
	NUMA          string          `kvfs:"numa" check:"numa" example:"bind:0" help:"NUMA nodes for the blocks, as in mount -o mpol: bind:NODES, prefer:NODE, interleave, interleave:NODES or local. Needs kvfs's own tmpfs, so root. Empty means the policy of the process that writes."`
	Keep          bool            `kvfs:"keep" short:"Tiers" default:"false" help:"Keep the blocks in memory after a clean stop. The next start adopts them."`
	Passthrough   string          `kvfs:"passthrough" enum:"auto|on|off" default:"auto" help:"Let the kernel read and write open blocks by itself (FUSE passthrough). on: the mount fails if that is not possible."`
}

// Group configures one group.
type Group struct {
	Pinned       bool            `kvfs:"pinned" example:"true" default:"false" help:"Never evict the blocks of the group."`
	Quota        scalar.Size     `kvfs:"quota" example:"16GiB" default:"0" help:"Most bytes that the group may hold. Zero means no limit."`
	BlockSize    scalar.Size     `kvfs:"block_size" default:"0" help:"Size of the group's blocks. Zero means that kvfs learns it from the first blocks."`
	Strict       bool            `kvfs:"strict" default:"false" help:"Commit only blocks of block_size, which must be set. For other sizes close, fsync and rename fail with EINVAL, and commit nothing. Without effect on a pinned group."`
	OpenDeadline scalar.Duration `kvfs:"open_deadline" example:"20ms" default:"0s" help:"As promotion.open_deadline, for blocks of this group. Zero means promotion.open_deadline."`
}

// Mount configures the FUSE mount.
type Mount struct {
	AllowOther    string          `kvfs:"allow_other" enum:"auto|on|off" default:"auto" help:"Let other users use the mount, by modes and owners. auto means on as root, else off. off as root saves two of the eight requests of a store."`
	WriteTimeout  scalar.Duration `kvfs:"write_timeout" default:"5s" help:"How long a write waits for memory to be freed before it fails with ENOSPC. Zero does not wait."`
	LookupLease   scalar.Duration `kvfs:"lookup_lease" default:"30s" help:"How long a block stays readable after a successful look-up."`
	EntryTimeout  scalar.Duration `kvfs:"entry_timeout" default:"60s" help:"How long the kernel may keep a name. kvfs announces removals to the kernel at once."`
	AttrTimeout   scalar.Duration `kvfs:"attr_timeout" default:"60s" help:"How long the kernel may keep attributes."`
	TempPatterns  []string        `kvfs:"temp_patterns" check:"pattern" default:"*.tmp,*.tmp.*,.tmp*,tmp/" help:"Names that are temporary until they are renamed. A pattern that ends in a slash names a directory."`
	PlainPatterns []string        `kvfs:"plain_patterns" check:"filename" default:"*.lock,*.lck,*.pid" help:"Names of files that are POSIX from the first byte and stay in memory, such as lock files."`
	TempExpiry    scalar.Duration `kvfs:"temp_expiry" default:"1h" help:"Age at which kvfs removes a temporary file that no process has open. Zero means never."`
	MaxWrite      scalar.Size     `kvfs:"max_write" case:"tests/mount TestMatrix cuts writes into small requests" min:"4KiB" max:"1MiB" default:"1MiB" help:"Largest single write request of the kernel."`
	FSName        string          `kvfs:"fs_name" case:"tests/takeover TestRefused refuses another name" check:"fsname" default:"kvfs" help:"Name of the file system in mount tables."`
}

// Disk configures the SSD tier.
type Disk struct {
	Dirs             []DiskDir       `kvfs:"dirs" short:"Tiers" name:"disk" sep:";" help:"Directories of the SSD tier, one a device. kvfs spreads blocks over them."`
	Policy           string          `kvfs:"policy" enum:"lru|arc|mq|s3fifo" default:"lru" help:"Eviction order."`
	Cascade          string          `kvfs:"cascade" short:"Tiers" enum:"async|sync|on_evict|off" default:"async" help:"When a committed block is copied to the SSD. async: soon after the commit. sync: close or rename waits for the copy. on_evict: before it leaves memory. off: only by fsync."`
	CascadeQueue     scalar.Size     `kvfs:"cascade_queue" case:"tests/bench measures copies without losing one" default:"0" help:"Most bytes that wait to be copied to the SSD. Blocks beyond that stay in memory alone. Zero means automatic: a quarter of memory.size, at most 1GiB."`
	Admission        string          `kvfs:"admission" enum:"all|second_hit" default:"all" help:"Which blocks are copied to the SSD. all: each block. second_hit: a block that is stored or read a second time."`
	DailyWriteBudget scalar.Size     `kvfs:"daily_write_budget" default:"0" help:"Most bytes written to all directories together in a day (UTC), to limit the wear of the devices. fsync may exceed it. Zero means no limit."`
	SlabSize         scalar.Size     `kvfs:"slab_size" case:"tests/mount TestDiskFsck has many slabs in a small directory" min:"1MiB" max:"1TiB" multiple:"4KiB" default:"256MiB" help:"Size of the files that hold the blocks, for files made from now on. A directory too small for 64 of them gets smaller ones."`
	ScrubRate        scalar.Size     `kvfs:"scrub_rate" case:"tests/mount TestDiskScrubber finds a bad copy at once" default:"16MiB" help:"Bytes a second that kvfs reads of each directory to find bad copies before a reader does. Zero means off."`
	RequireMount     string          `kvfs:"require_mount" case:"tests/mount TestDiskNotMounted unmounts the file system of a directory" enum:"auto|true|false" default:"auto" help:"Whether each directory must be on a mount of its own. auto: once one was, it must be on that file system again, else kvfs does not start. true: also the first time. false: it may be anywhere; the next start with auto expects it there."`
	StuckTimeout     scalar.Duration `kvfs:"stuck_timeout" case:"tests/mount TestDiskStuck does not wait long" above:"0" default:"30s" help:"A device without an answer for this time counts as failed, and its directory goes offline."`
}

// DiskDir is one directory of the SSD tier.
type DiskDir struct {
	Path string      `kvfs:"path" holds:"path" example:"/mnt/nvme0/kvfs" required:"true" help:"Directory, made if it is absent. A relative path starts at the working directory. It may not contain another one, nor memory.dir."`
	Size scalar.Size `kvfs:"size" example:"100GiB" required:"true" min:"1MiB" help:"Most bytes of the files in it."`
}

// Promotion configures how blocks come up into memory.
type Promotion struct {
	On           string          `kvfs:"on" enum:"open|lookup" default:"open" help:"What brings a block up: an open, or already a look-up that finds it (stat, access)."`
	Timeout      scalar.Duration `kvfs:"timeout" default:"30s" help:"How long an open waits for its block. After that the open is a miss. Zero does not wait."`
	Window       scalar.Duration `kvfs:"window" case:"tests/mount TestDiskCoalesced makes batches of opens that come one by one" default:"0s" help:"How long a batch waits for more blocks of the same request. Zero means that it takes the waiting blocks."`
	OpenDeadline scalar.Duration `kvfs:"open_deadline" default:"0s" help:"Limit for an open of a block that is not in memory. If the load would probably take longer, or takes longer, the open is a miss (ENOENT). Zero means no limit. groups.NAME.open_deadline is for one group."`
}

// Control names the users of the control files.
type Control struct {
	Users []string `kvfs:"users" example:"vllm" help:"Users, by name or number. They see only blocks that they may read."`
	Group string   `kvfs:"group" example:"kv-readers" help:"Group, by name or number. Its members see only blocks that they may read."`
}

// Staging configures the aligned buffers.
type Staging struct {
	Size        scalar.Size `kvfs:"size" case:"tests/mount TestDiskBiggerThanStaging has a block that does not fit" min:"1MiB" default:"64MiB" help:"Memory for the buffers."`
	UsableRatio float64     `kvfs:"usable_ratio" above:"0" max:"1" default:"0.9" help:"Share of the size that blocks may use. With an SSD tier it must be at least 1MiB, and at least the largest groups.NAME.block_size with its padding."`
}

// DirectIO configures input and output past the page cache.
type DirectIO struct {
	Engine string `kvfs:"engine" enum:"auto|io_uring|pread" default:"auto" help:"Kernel interface. auto: io_uring if it works, else pread. io_uring: fail if it does not work."`
}

// Log configures logging.
type Log struct {
	Level        string `kvfs:"level" short:"Logs and status" enum:"debug|info|warn|error" default:"info" help:"Least severe level that is logged."`
	Format       string `kvfs:"format" enum:"console|json" default:"console" help:"Form of the log lines."`
	AuditChanges bool   `kvfs:"audit_changes" default:"false" help:"Log each name that a process removes or replaces, each pin, and each time to live, with the process. What operators do by commands is always logged."`
	TierSummary  bool   `kvfs:"tier_summary" default:"false" help:"Log one structured line for each batch of blocks, with its keys and bytes by the tier that had them."`
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

// Origin tells where the value at path comes from. Paths are as in files ("memory.size", "groups.g0.quota",
// "disk.dirs[0].path"; names with dots or brackets are quoted, groups."a.b".quota). One that was never set has the zero
// Origin, which is default.
func (c *Config) Origin(path string) Origin { return c.origins[path] }
