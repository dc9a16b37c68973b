package blocks

import (
	"context"
	"fmt"
	"io"
	"os/user"
	"strconv"
	"text/tabwriter"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/control"
)

// UserID returns the number of a user by name, or the number that was given.
func UserID(name string) (string, error) {
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		return name, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return "", fmt.Errorf("this machine has no user %q", name)
	}
	return u.Uid, nil
}

// Quota sends a request to the daemon of the mount at dir, and prints the quotas of the answer, as JSON if raw.
func Quota(ctx context.Context, w io.Writer, c *client.Controls, dir string, q control.QuotaRequest, raw bool) error {
	all, err := Quotas(ctx, c, dir, q)
	if err != nil {
		return err
	}
	if raw {
		return show.JSON(w, control.QuotaAnswer{Quotas: all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no quotas")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "KIND\tNAME\tUSED\tQUOTA\tPINNED\tPIN QUOTA\tFROM\n")
	for _, q := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", q.Kind, quotaName(&q), show.Bytes(q.UsedBytes), show.BytesOrDash(q.Bytes),
			show.Bytes(q.PinnedBytes), show.BytesOrDash(q.PinQuotaBytes), q.Origin)
	}
	return t.Flush()
}

// Quotas sends a request to the daemon of the mount at dir, and returns the quotas of the answer.
func Quotas(ctx context.Context, c *client.Controls, dir string, q control.QuotaRequest) ([]control.Quota, error) {
	mount, err := c.Root(dir)
	if err != nil {
		return nil, err
	}
	d, err := c.Dial(mount, "quota")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var answer control.QuotaAnswer
	if err := d.AskInto(ctx, q, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", mount, err)
	}
	return answer.Quotas, nil
}

// quotaName returns the name as people know it.
func quotaName(q *control.Quota) string {
	if q.Kind == "user" {
		if u, err := user.LookupId(q.Name); err == nil {
			return q.Name + " (" + show.Text(u.Username) + ")"
		}
	}
	if q.Kind == "group" && q.Name == "" {
		return "./" // as in kvfs du
	}
	return show.Text(q.Name)
}
