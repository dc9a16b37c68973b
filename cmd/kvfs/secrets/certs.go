// Package secrets is the commands that make and change what peers know each other by: certificates and gossip keys.
package secrets

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
	"github.com/kvfs/kvfs/fs/query"
)

// certsDir is where certificates are made unless --dir says otherwise.
const certsDir = "kvfs-certs"

// CertsCommand returns kvfs certs.
func CertsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make and show the certificates with which peers know each other",
		Long: "Make and show the certificates with which peers know each other (settings tls.ca, tls.cert, tls.key).\n\n" +
			"init makes the cluster's certificate authority (CA), once. The directory with its key belongs on\n" +
			"one safe machine; nodes get ca.pem and their own two files. No file is ever overwritten.",
	}
	cmd.AddCommand(newCertsInitCommand(), newCertsIssueCommand(), newCertsShowCommand())
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

		DisableFlagsInUseLine: true,

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

		DisableFlagsInUseLine: true,

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

func newCertsShowCommand() *cobra.Command {
	return result.WithJSON(&cobra.Command{
		Use:   "show FILE...",
		Short: "Show the certificates in files",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return certsShow(cmd, args, time.Now())
		},
	})
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

// issuedCert is a certificate of a node that was made.
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

// certsIssue makes the certificate of a node.
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

// shownCert is a certificate in a file.
type shownCert struct {
	File    string    `json:"file"`
	Subject string    `json:"subject"`
	CA      bool      `json:"ca"`
	Names   []string  `json:"names"`
	Issuer  string    `json:"issuer"`
	Serial  string    `json:"serial"` // in hexadecimal digits
	From    time.Time `json:"not_before"`
	Until   time.Time `json:"not_after"`

	usages, left string
}

// certsShow prints the certificates in files, and joins the errors of those that
// cannot be read.
func certsShow(cmd *cobra.Command, files []string, now time.Time) error {
	var errs []error
	all := struct {
		Certificates []shownCert `json:"certificates"`
	}{[]shownCert{}}
	var text strings.Builder
	for i, file := range files {
		certs, err := pki.ReadCertificates(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "%s\n", file)
		for _, c := range certs {
			shown := showCert(file, c, now)
			shown.print(&text)
			all.Certificates = append(all.Certificates, shown)
		}
	}
	return errors.Join(append(errs, result.Print(cmd, all, "%s", text.String()))...)
}

// showCert describes one certificate. It quotes text of a foreign one that could disturb a
// terminal.
func showCert(file string, c *x509.Certificate, now time.Time) shownCert {
	names := []string{}
	for _, name := range c.DNSNames {
		names = append(names, query.Escape(name))
	}
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return shownCert{
		file, query.Escape(c.Subject.String()), c.IsCA, names, query.Escape(c.Issuer.String()), fmt.Sprintf("%x", c.SerialNumber),
		c.NotBefore.UTC(), c.NotAfter.UTC(), usages(c), timeLeft(c, now),
	}
}

// print writes it for people.
func (c *shownCert) print(w io.Writer) {
	kind := "of a node"
	if c.CA {
		kind = "authority"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "  subject\t%s\n  kind\t%s%s\n", c.Subject, kind, c.usages)
	if len(c.Names) > 0 {
		fmt.Fprintf(t, "  names\t%s\n", strings.Join(c.Names, ", "))
	}
	fmt.Fprintf(t, "  issuer\t%s\n  serial\t%s\n  valid\t%s to %s, %s\n", c.Issuer, c.Serial, c.From.Format(time.RFC3339), c.Until.Format(time.RFC3339), c.left)
	t.Flush()
}

// usages returns the allowed uses of a certificate, or "" if they are not limited.
func usages(c *x509.Certificate) string {
	var names []string
	for _, u := range c.ExtKeyUsage {
		switch u {
		case x509.ExtKeyUsageServerAuth:
			names = append(names, "server")
		case x509.ExtKeyUsageClientAuth:
			names = append(names, "client")
		default:
			names = append(names, "other")
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", for " + strings.Join(names, ", ")
}

// timeLeft returns how long a certificate is still valid.
func timeLeft(c *x509.Certificate, now time.Time) string {
	left := c.NotAfter.Sub(now)
	switch {
	case now.Before(c.NotBefore):
		return "not yet valid"
	case left < 0:
		return "expired"
	case left < 48*time.Hour:
		return fmt.Sprintf("%.0f hours left", left.Hours())
	}
	return fmt.Sprintf("%.0f days left", left.Hours()/24)
}
