package accesslog

import (
	"strconv"
	"time"
)

// Line is one line of the stream: a request, or a note.
type Line struct {
	Time time.Time

	// A request has an Op.
	UID, GID, PID uint32        // of the calling process; 0 if the kernel itself asks (RELEASE)
	Op            string        // as in the protocol of FUSE: "OPEN"
	Path          string        // below the mount; empty for the root, and for a file without a name
	To            string        // new path, of RENAME
	Size          int64         // bytes moved by READ and WRITE, else the size of the file; 0 may mean unknown
	Offset        int64         // of READ and WRITE, in bytes
	Writes        bool          // of OPEN: for writing
	Result        string        // OK, or the name of the errno
	Took          time.Duration // from when the daemon read the request to its answer

	// A note has one of these.
	Reads   string // the first line: how bytes are read, as mount.read_path of the status
	Dropped uint64 // requests that are missing here, because the reader was too slow
}

// timeForm is that of times: UTC, microseconds.
const timeForm = "2006-01-02T15:04:05.000000Z"

// Append appends the line, with its end, to b and returns the longer slice.
func (l *Line) Append(b []byte) []byte {
	b = l.Time.UTC().AppendFormat(append(b, "time="...), timeForm)
	switch {
	case l.Reads != "":
		return append(append(append(b, " reads="...), l.Reads...), '\n')
	case l.Dropped > 0:
		return append(strconv.AppendUint(append(b, " dropped="...), l.Dropped, 10), '\n')
	}
	b = strconv.AppendUint(append(b, " uid="...), uint64(l.UID), 10)
	b = strconv.AppendUint(append(b, " gid="...), uint64(l.GID), 10)
	b = strconv.AppendUint(append(b, " pid="...), uint64(l.PID), 10)
	b = append(append(b, " op="...), l.Op...)
	b = strconv.AppendQuote(append(b, " path="...), l.Path)
	if l.To != "" {
		b = strconv.AppendQuote(append(b, " to="...), l.To)
	}
	b = strconv.AppendInt(append(b, " size="...), l.Size, 10)
	b = strconv.AppendInt(append(b, " offset="...), l.Offset, 10)
	if l.Writes {
		b = append(b, " writes=true"...)
	}
	b = append(append(b, " result="...), l.Result...)
	b = strconv.AppendFloat(append(b, " seconds="...), l.Took.Seconds(), 'f', 6, 64)
	return append(b, '\n')
}
