package secrets

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
)

// KeysCommand returns kvfs keys.
func KeysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make and change the file of keys that encrypt the gossip",
		Long: "Make and change the file of keys that encrypt the gossip between peers (setting peer.gossip_keys).\n\n" +
			"All nodes need the same keys. The first key of the file encrypts, all of them decrypt. To change it\n" +
			"without a gap: add the new key on all nodes, then use it on all nodes, then remove the old one on all\n" +
			"nodes. A running kvfs takes over each change within a second.\n\n" +
			"A key is named by its text or by the fingerprint that list shows; - reads it from standard input,\n" +
			"which keeps it out of the list of processes.",
	}
	cmd.AddCommand(newKeysCreateCommand(), newKeysGenerateCommand(), newKeysListCommand(), newKeysAddCommand(),
		newKeysChangeCommand("use", "Make a key of FILE the one that encrypts", "encrypts now", gossip.UseKey),
		newKeysChangeCommand("remove", "Remove a key from FILE, but not the one that encrypts", "is removed", gossip.RemoveKey))
	return cmd
}

// keyResult is the result of a change of keys as JSON.
type keyResult struct {
	File string `json:"file,omitempty"`
	Key  string `json:"key,omitempty"` // a new one that was made
}

func newKeysCreateCommand() *cobra.Command {
	return result.WithJSON(&cobra.Command{
		Use:   "create FILE",
		Short: "Make a file with one new key",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := gossip.CreateKeyring(args[0]); err != nil {
				return err
			}
			return result.Print(cmd, keyResult{File: args[0]}, "%s holds a new key. Copy it to all nodes, readable by kvfs only (mode 0600), and set there:\n"+
				"  peer:\n    gossip_keys: %q\n", args[0], args[0])
		},
	})
}

func newKeysGenerateCommand() *cobra.Command {
	return result.WithJSON(&cobra.Command{
		Use:   "generate",
		Short: "Print a new key",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			key, err := gossip.GenerateKey()
			if err != nil {
				return err
			}
			return result.Print(cmd, keyResult{Key: key}, "%s\n", key)
		},
	})
}

func newKeysListCommand() *cobra.Command {
	return result.WithJSON(&cobra.Command{
		Use:   "list FILE",
		Short: "List the fingerprints of the keys in FILE",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ring, err := gossip.LoadKeyring(args[0])
			if err != nil {
				return err
			}
			type row struct {
				Fingerprint string `json:"fingerprint"`
				Encrypts    bool   `json:"encrypts"` // all of them decrypt
			}
			var all struct {
				Keys []row `json:"keys"`
			}
			text := ""
			for i, fingerprint := range ring.Fingerprints() {
				all.Keys = append(all.Keys, row{fingerprint, i == 0})
				role := "decrypts"
				if i == 0 {
					role = "encrypts and decrypts"
				}
				text += fingerprint + "  " + role + "\n"
			}
			return result.Print(cmd, all, "%s", text)
		},
	})
}

func newKeysAddCommand() *cobra.Command {
	return result.WithJSON(&cobra.Command{
		Use:   "add FILE [KEY]",
		Short: "Add a key to FILE, behind the others",
		Long:  "Add KEY to FILE, behind the others, or a new key, which is then printed, to be added on the other nodes.",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				key, err := keyArg(cmd.InOrStdin(), args[1])
				if err != nil {
					return err
				}
				if err := gossip.AddKey(args[0], key); err != nil {
					return err
				}
				return result.Print(cmd, keyResult{File: args[0]}, "the key is added to %s\n", args[0])
			}
			key, err := gossip.GenerateKey()
			if err != nil {
				return err
			}
			if err := gossip.AddKey(args[0], key); err != nil {
				return err
			}
			return result.Print(cmd, keyResult{args[0], key}, "%s\n", key)
		},
	})
}

// newKeysChangeCommand returns a command that changes one key of a file.
func newKeysChangeCommand(name, short, done string, change func(path, key string) error) *cobra.Command {
	return result.WithJSON(&cobra.Command{
		Use:   name + " FILE KEY|FINGERPRINT",
		Short: short,
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyArg(cmd.InOrStdin(), args[1])
			if err != nil {
				return err
			}
			if err := change(args[0], key); err != nil {
				return err
			}
			return result.Print(cmd, keyResult{File: args[0]}, "the key %s in %s\n", done, args[0])
		},
	})
}

// maxKeyLine bounds the line of a key on standard input, in bytes.
const maxKeyLine = 4096

// keyArg returns the key for an argument; - is the first line of r.
func keyArg(r io.Reader, arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	line, err := bufio.NewReader(io.LimitReader(r, maxKeyLine)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("standard input: %w", err)
	}
	key := strings.TrimSpace(line)
	if key == "" {
		return "", fmt.Errorf("standard input: no key in its first line")
	}
	return key, nil
}
