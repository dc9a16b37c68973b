// Package secrets is the commands that make and change what peers know each other by: certificates and gossip keys.
package secrets

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
)

// certsDir is where certificates are made unless --dir says otherwise.
const certsDir = "kvfs-certs"

// CertsCommand returns kvfs certs.
func CertsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make the certificates with which peers know each other",
		Long: "Make the certificates with which peers know each other (settings tls.ca, tls.cert, tls.key).\n\n" +
			"init makes the cluster's certificate authority (CA), once. Keep the directory with its key on one safe\n" +
			"machine; copy ca.pem and two files of its own to each node. kvfs certs overwrites no file.",
	}
	cmd.AddCommand(newCertsInitCommand(), newCertsIssueCommand())
	return cmd
}

func newCertsInitCommand() *cobra.Command {
	var dir string
	var nodes []string
	cmd := result.WithJSON(&cobra.Command{
		Use:   "init [--dir DIR] [--node NAME[,HOST|IP...]]...",
		Short: "Make a certificate authority, and certificates of nodes",
		Long: "Make a certificate authority in DIR and, for each --node, a certificate, and print what to copy\n" +
			"where and the settings that go with it. NAME is the node's node_name. HOST and IP are further names\n" +
			"in its certificate; kvfs itself needs none.",
		Example: "  kvfs certs init --dir /root/kvfs-certs --node gpu-1,10.0.0.1 --node gpu-2,10.0.0.2",
		Args:    cobra.NoArgs,

		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := parseNodes(nodes)
			if err != nil {
				return exit.InUsage(cmd.CommandPath(), "%w", err)
			}
			return certsInit(cmd, dir, all)
		},
	})
	cmd.Flags().StringVar(&dir, "dir", certsDir, "directory for the files, made if it is absent")
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "`NAME` of a node, with further host names and addresses behind commas; repeat it for more")
	return cmd
}

func newCertsIssueCommand() *cobra.Command {
	var dir string
	cmd := result.WithJSON(&cobra.Command{
		Use:   "issue [--dir DIR] NAME [HOST|IP...]",
		Short: "Make a certificate of a node, with the authority in DIR",
		Long: "Make a certificate of the node NAME (its node_name) with the certificate authority in DIR, and\n" +
			"print what to copy where. HOST and IP are further names in it; kvfs itself needs none.\n\n" +
			"To renew one, move the old files away first.",
		Args: cobra.MinimumNArgs(1),

		RunE: func(cmd *cobra.Command, args []string) error {
			o := nodeOptions(args)
			if err := o.Check(); err != nil {
				return exit.InUsage(cmd.CommandPath(), "%w", err)
			}
			made, err := certsIssue(dir, o)
			if err != nil {
				return err
			}
			return result.Print(cmd, made, "%s", made)
		},
	})
	cmd.Flags().StringVar(&dir, "dir", certsDir, "directory of the certificate authority")
	return cmd
}

// nodeOptions returns the options of a node: its name, then further names and addresses.
func nodeOptions(words []string) pki.NodeOptions {
	o := pki.NodeOptions{Name: words[0]}
	for _, word := range words[1:] {
		if ip := net.ParseIP(strings.TrimSuffix(strings.TrimPrefix(word, "["), "]")); ip != nil {
			o.Addrs = append(o.Addrs, ip)
		} else {
			o.Hosts = append(o.Hosts, word)
		}
	}
	return o
}

// parseNodes reads the values of --node. It fails with every fault of them.
func parseNodes(values []string) ([]pki.NodeOptions, error) {
	var all []pki.NodeOptions
	var errs []error
	for _, value := range values {
		words := strings.Split(value, ",")
		for i := range words {
			words[i] = strings.TrimSpace(words[i])
		}
		o := nodeOptions(words)
		if err := o.Check(); err != nil {
			errs = append(errs, fmt.Errorf("--node %s: %w", value, err))
		}
		if slices.ContainsFunc(all, func(other pki.NodeOptions) bool { return other.Name == o.Name }) {
			errs = append(errs, fmt.Errorf("--node %s: %s is given twice", value, o.Name))
		}
		all = append(all, o)
	}
	return all, errors.Join(errs...)
}

// certsInit makes a CA and the certificates of nodes, and prints what to do with them.
func certsInit(cmd *cobra.Command, dir string, nodes []pki.NodeOptions) error {
	if err := pki.CreateCA(dir, 0); err != nil {
		return err
	}
	made := struct {
		CA    string       `json:"ca"`
		Key   string       `json:"ca_key"`
		Nodes []issuedCert `json:"nodes"`
	}{filepath.Join(dir, pki.CAFile), filepath.Join(dir, pki.CAKeyFile), []issuedCert{}}
	text := fmt.Sprintf("Certificate authority of the cluster: %s\nIts key stays here. Everyone who has it can join the cluster: %s\n", made.CA, made.Key)
	if len(nodes) == 0 {
		text += fmt.Sprintf("\nNow make a certificate for each node: kvfs certs issue --dir %s NAME\n", dir)
	}
	for _, o := range nodes {
		one, err := certsIssue(dir, o)
		if err != nil {
			return errors.Join(err, result.Print(cmd, made, "%s", text)) // the files are there
		}
		made.Nodes = append(made.Nodes, one)
		text += "\n" + one.String()
	}
	return result.Print(cmd, made, "%s", text)
}

type issuedCert struct {
	Name  string    `json:"node_name"`
	CA    string    `json:"ca"`
	Cert  string    `json:"cert"`
	Key   string    `json:"key"`
	Until time.Time `json:"not_after"`
}

// String says what to do with it.
func (c issuedCert) String() string {
	return fmt.Sprintf("Node %s, valid until %s. Copy to /etc/kvfs there:\n  %s %s %s\n"+
		"and set there:\n  node_name: %q\n  tls:\n    ca: /etc/kvfs/%s\n    cert: /etc/kvfs/%s\n    key: /etc/kvfs/%s\n",
		c.Name, c.Until.Format(time.DateOnly), c.CA, c.Cert, c.Key,
		c.Name, filepath.Base(c.CA), filepath.Base(c.Cert), filepath.Base(c.Key))
}

func certsIssue(dir string, o pki.NodeOptions) (issuedCert, error) {
	if err := pki.Issue(dir, o); err != nil {
		return issuedCert{}, err
	}
	cert, key := pki.NodeFiles(dir, o.Name)
	made, err := pki.ReadCertificates(cert)
	if err != nil {
		return issuedCert{}, err
	}
	return issuedCert{o.Name, filepath.Join(dir, pki.CAFile), cert, key, made[0].NotAfter.UTC()}, nil
}

// KeysCommand returns kvfs keys.
func KeysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make and change the file of keys that encrypt the gossip",
		Long: "Make and change the file of keys that encrypt the gossip between peers (setting peer.gossip_keys).\n\n" +
			"All nodes need the same keys. The first key of the file encrypts, all of them decrypt. To change the first\n" +
			"without a gap, add the new key on all nodes, then use it on all, then remove the old one on all. A running\n" +
			"kvfs follows each change within a second.\n\n" +
			"Name a key by its text or by the fingerprint that list shows; - reads it from standard input.",
	}
	cmd.AddCommand(newKeysCreateCommand(), newKeysListCommand(), newKeysAddCommand(),
		newKeysChangeCommand("use", "Make a key of FILE the one that encrypts", "encrypts now", gossip.UseKey),
		newKeysChangeCommand("remove", "Remove a key from FILE, but not the one that encrypts", "is removed", gossip.RemoveKey))
	return cmd
}

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
		Long:  "Add KEY to FILE, behind the others. Without KEY, add and print a new one; add that on the other nodes.",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := "", error(nil)
			if len(args) == 1 {
				key, err = gossip.GenerateKey()
			} else {
				key, err = keyArg(cmd.InOrStdin(), args[1])
			}
			if err == nil {
				err = gossip.AddKey(args[0], key)
			}
			switch {
			case err != nil:
				return err
			case len(args) == 2:
				return result.Print(cmd, keyResult{File: args[0]}, "the key is added to %s\n", args[0])
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
