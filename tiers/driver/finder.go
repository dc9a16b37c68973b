package driver

// Finder is the ability of a tier to hold blocks that this engine never gave it, too many to list with Enumerator
// at open: those of an earlier process, or of others that share the tier's storage. Unlike those of a Remote, they
// are this node's own: it loads, renames and removes them as if it had stored them.
//
// The engine calls Find for a name that is not in its index when a process looks the name up. A block then gets an entry
// whose only tier is this one, and a directory an ordinary entry of this node. Both stay in the index, and the engine
// does not call Find for them again: the block counts as one that Enumerator listed. Before the engine knows the
// checksum of a block, its Loads name the version that was found. Afterwards any version with these bytes will do.
//
// A question where a block is makes no entry. Of two versions the later one counts, of the same version the copy in the
// faster tier; the Remote takes part in that, and its graves hide earlier versions.
//
// The promise is narrow:
//
//   - A name that only the tier has is not listed in its directory.
//   - A directory can be removed or renamed over while the tier has blocks below it, if none of them is in the index.
//     The next look-up finds it again. With a Remote it stays away: its grave hides the blocks below that are older,
//     until the directory is made again or a later block is stored there.
//   - The rename of a directory moves the blocks that are in the index. The others keep their paths.
//   - What a process takes away or replaces under a name, the tier is told to remove, also if the engine never asked for
//     that copy. What memory or another tier gives up by itself is found again.
//   - A pin is not found: it ends with the entry. A block past its time to live is not found, and stays in the tier.
//   - A name that is temporary or plain on this node is not found.
//   - The kernel does not keep that a name is absent, since the tier can get it at any time: each such look-up asks.
type Finder interface {
	// Find returns what the tier has at a path below the mount, which need not be a valid one. It answers from memory
	// and is called with the lock of the engine held: it neither blocks nor calls the engine or its Host.
	//
	// Mode has the type, S_IFREG or S_IFDIR. The rest of a block is what Store or Update was last given. A tier without
	// room for them may tell Seq as Mtime, which is about the time of the commit, and round Expires
	// up to a second.
	// A directory is there as long as the tier has a block below it. Its Seq is at least the highest of theirs, so that
	// no older grave of the directory hides them; its Size and Expires are 0.
	//
	// Find returns false for
	//
	//   - a block that the tier is storing, until Lookup would answer Hit;
	//   - a block that Remove or Update has taken away, from the return of that call on, whoever stored it;
	//   - a block for which it asks Host.MayEvict, from before the question until the answer is no;
	//   - a block that it has told as Host.Lost, or that a Load has found Absent or corrupt, from before it says so.
	//
	// A tier that learns of what others store and remove with a delay may err for that long. The engine then finds out
	// at the Load.
	Find(path string) (Located, bool)
}
