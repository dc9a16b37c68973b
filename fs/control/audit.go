package control

import (
	"context"

	"go.uber.org/zap"
)

// openerKey is the key of the Opener in the context of a Dialogue.
type openerKey struct{}

// Audit logs what a client has done by a dialogue, and who it is. ctx is that of the Dialogue. The client waits for its
// answer meanwhile, so its process can still be seen.
func Audit(ctx context.Context, log *zap.Logger, what string, fields ...zap.Field) {
	by, ok := ctx.Value(openerKey{}).(Opener)
	if !ok || log == nil {
		return
	}
	who := []zap.Field{zap.Uint32("uid", by.UID), zap.Uint32("gid", by.GID)}
	if by.Process != nil {
		pid, command := by.Process()
		who = append(who, AuditProcess(pid, command)...)
	}
	log.Info(what, append(who, fields...)...)
}

// AuditProcess returns the fields of an audit line about a process. Pid 0 is no process: the one that asked is in a pid name
// space that this process does not see.
func AuditProcess(pid uint32, command string) []zap.Field {
	if pid == 0 {
		return []zap.Field{zap.String("process", "not visible: in another pid name space")}
	}
	return []zap.Field{zap.Uint32("pid", pid), zap.String("command", command)}
}
