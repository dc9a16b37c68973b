package tiers

import (
	"context"
	"os"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// Abandon replaces Release for a killed writer, whose process or mount is gone.
func (e *Engine) Abandon(h *Handle) { e.core.writing.Abandon(h) }

// Attr returns the attributes of an entry that the kernel holds a reference to.
func (e *Engine) Attr(id index.ID) Attr { return e.core.names.Attr(id) }

// Blocks calls fn for each block whose bytes this node has, with its size in bytes and the names of its tiers, those
// of other nodes left out.
func (e *Engine) Blocks(ctx context.Context, fn func(path string, size int64, tiers []string) error) error {
	return e.core.elsewhere.Blocks(ctx, fn)
}

// Checksum returns the checksum of a committed block.
func (e *Engine) Checksum(id index.ID) (block.Checksum, error) { return e.core.names.Checksum(id) }

// CloseRead gives back the pin of an OpenRead.
func (e *Engine) CloseRead(id index.ID) { e.core.writing.CloseRead(id) }

// Create makes a file, counts one reference by the kernel, and opens the file for writing.
func (e *Engine) Create(ctx context.Context, o CreateOptions) (Attr, *Handle, error) {
	return e.core.writing.Create(ctx, o)
}

// Drain waits until all blocks that were to be cascaded when it was called are copied, as far as the tiers take them,
// and durable, or until ctx ends.
func (e *Engine) Drain(ctx context.Context) error { return e.core.lower.Drain(ctx) }

// Elsewhere lists the names in a directory that other nodes have, in ascending order.
func (e *Engine) Elsewhere(ctx context.Context, dir index.ID) []Dirent {
	return e.core.elsewhere.Elsewhere(ctx, dir)
}

// Events returns the log of events about blocks.
func (e *Engine) Events() *event.Log { return e.core.Events() }

// EvictFrom drops blocks from one tier, without regard to leases.
func (e *Engine) EvictFrom(ctx context.Context, r EvictRequest) (EvictReply, error) {
	return e.core.space.EvictFrom(ctx, r)
}

// Flush is called when a process closes a descriptor of h (package draft, End).
func (e *Engine) Flush(ctx context.Context, h *Handle, by Caller, closer Closer) error {
	return e.core.writing.Flush(ctx, h, by, closer)
}

// Forget takes back n references by the kernel.
func (e *Engine) Forget(id index.ID, n uint64) { e.core.names.Forget(id, n) }

// Fsync commits a file that is being written, with its present bytes.
func (e *Engine) Fsync(ctx context.Context, id index.ID) error { return e.core.lower.Fsync(ctx, id) }

// FsyncDir waits until all blocks below a directory, and all removals and renames, are durable.
func (e *Engine) FsyncDir(ctx context.Context, dir index.ID) error {
	return e.core.lower.FsyncDir(ctx, dir)
}

// Hint begins to bring blocks into memory, in order, and returns at once.
func (e *Engine) Hint(as *event.Viewer, request string, paths [][]byte) {
	e.core.lower.Hint(as, request, paths)
}

// Holding returns the file or directory of this node at path.
func (e *Engine) Holding(path string) (Holding, bool) { return e.core.elsewhere.Holding(path) }

// Holdings calls fn for each file and directory of this node, a directory before its entries, until fn fails, and
// returns that error.
func (e *Engine) Holdings(ctx context.Context, fn func(h *Holding) error) error {
	return e.core.elsewhere.Holdings(ctx, fn)
}

// HoldingsIn returns the files and directories of this node in dir whose names come after the given one: at most
// limit and at most 65536, in ascending order.
func (e *Engine) HoldingsIn(dir, after string, limit int) (list []Holding, more bool) {
	return e.core.elsewhere.HoldingsIn(dir, after, limit)
}

// Jobs returns the loads under way, oldest first, and for each tier the number of blocks that wait for a job.
func (e *Engine) Jobs() (jobs []LoadJob, waiting map[string]int) { return e.core.report.Jobs() }

// Lend holds a block for another node, with its checksum computed.
func (e *Engine) Lend(ctx context.Context, o LendOptions) (*Lent, error) {
	return e.core.elsewhere.Lend(ctx, o)
}

// Lookup returns the entry called name in the directory parent, as the caller's process sees it.
func (e *Engine) Lookup(parent index.ID, name string, by Caller) (a Attr, err error) {
	return e.core.names.Lookup(parent, name, by)
}

// Mkdir makes a directory and counts one reference by the kernel.
func (e *Engine) Mkdir(parent index.ID, name string, mode, uid, gid uint32, by Process) (Attr, error) {
	return e.core.names.Mkdir(parent, name, mode, uid, gid, by)
}

// Observe raises the number that the next version gets above seq, unless seq is too far in the future.
func (e *Engine) Observe(seq uint64, from string) { e.core.elsewhere.Observe(seq, from) }

// OpenBlob opens the primary file of a blob.
func (e *Engine) OpenBlob(blob driver.BlobID) (*os.File, error) { return e.core.writing.OpenBlob(blob) }

// OpenHot opens a block in memory for reading. It fails with ErrHollow for another, and does not wait.
func (e *Engine) OpenHot(id index.ID, by Caller) (Opened, error) {
	return e.core.writing.OpenHot(id, by)
}

// OpenLater brings a block for which OpenHot failed with ErrHollow to memory, and opens it for reading.
func (e *Engine) OpenLater(id index.ID, by Caller, then func(o Opened, file *os.File, err error)) {
	e.core.writing.OpenLater(id, by, then)
}

// OpenRead opens a file for reading and pins it until CloseRead.
func (e *Engine) OpenRead(ctx context.Context, id index.ID, by Caller, nonblock bool) (Opened, error) {
	return e.core.writing.OpenRead(ctx, id, by, nonblock)
}

// OpenWrite opens an existing file for writing.
func (e *Engine) OpenWrite(ctx context.Context, id index.ID, by Caller, o WriteOptions) (*Handle, error) {
	return e.core.writing.OpenWrite(ctx, id, by, o)
}

// OpenDir notes that a process opens a directory.
func (e *Engine) OpenDir(id index.ID) { e.core.names.OpenDir(id) }

// Parent returns the directory that holds id.
func (e *Engine) Parent(id index.ID) index.ID { return e.core.names.Parent(id) }

// PathOf returns the path of an entry that the kernel holds a reference to, or the path that it waits for; "" if none.
func (e *Engine) PathOf(id index.ID) string { return e.core.report.PathOf(id) }

// Pinned reports whether a file is pinned, by itself or by its group.
func (e *Engine) Pinned(id index.ID) bool { return e.core.report.Pinned(id) }

// Prefetch brings blocks into memory, in order.
func (e *Engine) Prefetch(ctx context.Context, r PrefetchRequest) { e.core.lower.Prefetch(ctx, r) }

// PresenceOf returns whether a file is there: Hit if some tier has it, Pending while it is written or promoted.
func (e *Engine) PresenceOf(id index.ID) driver.Presence { return e.core.report.PresenceOf(id) }

// Presences sets out[i] to where the block at paths[i] is, a path below the mount.
func (e *Engine) Presences(paths [][]byte, o PresenceOptions, out []Place) {
	e.core.names.Presences(paths, o, out)
}

// Probe returns an empty file of the primary tier, for trying what the kernel can do with such files, and a function
// that closes and removes the file.
func (e *Engine) Probe() (driver.BlobID, *os.File, func(), error) { return e.core.writing.Probe() }

// ReadDir appends to buf up to readdirBatch entries of dir that come after a cookie, in a stable order, and returns
// the longer slice.
func (e *Engine) ReadDir(dir index.ID, after uint64, hint index.ID, by Caller, buf []Dirent) []Dirent {
	return e.core.names.ReadDir(dir, after, hint, by, buf)
}

// LastCookie returns the highest cookie of an entry of dir.
func (e *Engine) LastCookie(dir index.ID) uint64 { return e.core.names.LastCookie(dir) }

// RefElsewhere finds a name of a directory as Lookup does, and counts one reference by the kernel.
func (e *Engine) RefElsewhere(dir index.ID, name string) (Attr, bool) {
	return e.core.elsewhere.RefElsewhere(dir, name)
}

// RefNamed counts one more reference by the kernel to id, as READDIRPLUS gives, if id is still the child of dir
// called name.
func (e *Engine) RefNamed(dir, id index.ID, name string) (Attr, bool) {
	return e.core.names.RefNamed(dir, id, name)
}

// Release ends h: the kernel calls it when the last descriptor is gone.
func (e *Engine) Release(h *Handle) { e.core.writing.Release(h) }

// Accounts returns what groups, users and control groups hold and may hold. Quotas may be changed there.
func (e *Engine) Accounts() Accounts { return e.core.space.Accounts() }

// ReleaseRequest ends the leases of a request of a user, in all groups, and returns their number.
func (e *Engine) ReleaseRequest(as *event.Viewer, request string) (ended int) {
	return e.core.names.ReleaseRequest(as, request)
}

// Rename moves the file or directory that the name means to the caller, and replaces the one that has the new name.
func (e *Engine) Rename(ctx context.Context, o RenameOptions) error {
	return e.core.writing.Rename(ctx, o)
}

// Rmdir removes an empty directory.
func (e *Engine) Rmdir(ctx context.Context, parent index.ID, name string, by Caller) error {
	return e.core.names.Rmdir(ctx, parent, name, by)
}

// DropPrivileges takes the setuid and setgid bits of a file away, and reports whether there were any.
func (e *Engine) DropPrivileges(id index.ID) (bool, error) { return e.core.names.DropPrivileges(id) }

// SetAttr changes attributes.
func (e *Engine) SetAttr(id index.ID, c Change) (Attr, error) { return e.core.names.SetAttr(id, c) }

// SetPinned pins a file, so that it is never evicted, or unpins it.
func (e *Engine) SetPinned(id index.ID, pinned bool) error { return e.core.names.SetPinned(id, pinned) }

// SetTTL sets the time that a file has left to live; 0 means for ever.
func (e *Engine) SetTTL(id index.ID, ttl time.Duration) error { return e.core.names.SetTTL(id, ttl) }

// Stats returns a snapshot.
func (e *Engine) Stats() Stats { return e.core.report.Stats() }

// StoreJobs returns the copies under way, oldest first, and for each tier the number of blocks that wait for a job.
func (e *Engine) StoreJobs() (jobs []StoreJob, queued map[string]int) {
	return e.core.report.StoreJobs()
}

// Supersede drops this node's file or directory of a path if its version is below seq: another node has removed or
// replaced it.
func (e *Engine) Supersede(path string, dir bool, seq uint64) {
	e.core.elsewhere.Supersede(path, dir, seq)
}

// TTL returns the time that a file has left to live, 0 if for ever.
func (e *Engine) TTL(id index.ID) time.Duration { return e.core.report.TTL(id) }

// Take copies a block that the Remote tier has to this node, as the holder of the block asks, and has it copied to
// the tiers below that are not Remote.
func (e *Engine) Take(ctx context.Context, h *Holding) error { return e.core.elsewhere.Take(ctx, h) }

// TierNames returns the tiers that hold a file, fastest first.
func (e *Engine) TierNames(id index.ID) []string { return e.core.report.TierNames(id) }

// TiersOf returns the names of the tiers of this node that have the block at path, none if there is no such block.
func (e *Engine) TiersOf(path string) []string { return e.core.elsewhere.TiersOf(path) }

// TruncateName sets the size of a file that the caller does not have open for writing, as truncate(2).
func (e *Engine) TruncateName(ctx context.Context, id index.ID, by Caller, size int64) error {
	return e.core.writing.TruncateName(ctx, id, by, size)
}

// Unlink removes the file that name means to the caller: the name at once, the bytes when the last handle is closed.
func (e *Engine) Unlink(parent index.ID, name string, by Caller) error {
	return e.core.writing.Unlink(parent, name, by)
}

// Why returns why the block at a path below the mount is not there, or that it is.
func (e *Engine) Why(path string) fate.Verdict { return e.core.verdicts.WhyAsked(path) }

// WhyOf returns why the block of an entry is not there, or that it is. The kernel holds a reference to the entry.
func (e *Engine) WhyOf(id index.ID) fate.Verdict { return e.core.verdicts.WhyOf(id) }

// Writing reports whether any file is being written.
func (e *Engine) Writing() bool { return e.core.Writing() }
