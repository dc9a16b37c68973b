package main

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
	"github.com/kvfs/kvfs/fs/query"
)

// certsDir is where certificates are made unless --dir says otherwise.
const certsDir = "kvfs-certs"

func newCertsCommand() *cobra.Command {
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
	cmd := &cobra.Command{
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
				return usageError(cmd, "%w", err)
			}
			return certsInit(cmd.OutOrStdout(), dir, all)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", certsDir, "directory for the files, made if it is absent")
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "`NAME` of a node, with further host names and addresses behind commas; repeat it for more")
	return cmd
}

func newCertsIssueCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
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
				return usageError(cmd, "%w", err)
			}
			return certsIssue(cmd.OutOrStdout(), dir, o)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", certsDir, "directory of the certificate authority")
	return cmd
}

func newCertsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE...",
		Short: "Show the certificates in files",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return certsShow(cmd.OutOrStdout(), args, time.Now())
		},
	}
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
func certsInit(w io.Writer, dir string, nodes []pki.NodeOptions) error {
	if err := pki.CreateCA(dir, 0); err != nil {
		return err
	}
	fmt.Fprintf(w, "Certificate authority of the cluster: %s\n", filepath.Join(dir, pki.CAFile))
	fmt.Fprintf(w, "Its key stays here. Everyone who has it can join the cluster: %s\n", filepath.Join(dir, pki.CAKeyFile))
	if len(nodes) == 0 {
		_, err := fmt.Fprintf(w, "\nNow make a certificate for each node: kvfs certs issue --dir %s NAME\n", dir)
		return err
	}
	for _, o := range nodes {
		fmt.Fprintln(w)
		if err := certsIssue(w, dir, o); err != nil {
			return err
		}
	}
	return nil
}

// certsIssue makes the certificate of a node, and prints what to do with it.
func certsIssue(w io.Writer, dir string, o pki.NodeOptions) error {
	if err := pki.Issue(dir, o); err != nil {
		return err
	}
	cert, key := pki.NodeFiles(dir, o.Name)
	made, err := pki.ReadCertificates(cert)
	if err != nil {
		return err
	}
	ca := filepath.Join(dir, pki.CAFile)
	_, err = fmt.Fprintf(w, "Node %s, valid until %s. Copy to /etc/kvfs there:\n  %s %s %s\n"+
		"and set there:\n  node_name: %q\n  tls:\n    ca: /etc/kvfs/%s\n    cert: /etc/kvfs/%s\n    key: /etc/kvfs/%s\n",
		o.Name, made[0].NotAfter.UTC().Format(time.DateOnly), ca, cert, key,
		o.Name, filepath.Base(ca), filepath.Base(cert), filepath.Base(key))
	return err
}

// certsShow prints the certificates in files, and joins the errors of those that
// cannot be read.
func certsShow(w io.Writer, files []string, now time.Time) error {
	var errs []error
	for i, file := range files {
		certs, err := pki.ReadCertificates(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n", file)
		for _, c := range certs {
			if err := showCert(w, c, now); err != nil {
				return err
			}
		}
	}
	return errors.Join(errs...)
}

// showCert prints one certificate. It quotes text of a foreign one that could disturb a
// terminal.
func showCert(w io.Writer, c *x509.Certificate, now time.Time) error {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	kind := "of a node"
	if c.IsCA {
		kind = "authority"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "  subject\t%s\n", query.Escape(c.Subject.String()))
	fmt.Fprintf(t, "  kind\t%s%s\n", kind, usages(c))
	if len(names) > 0 {
		fmt.Fprintf(t, "  names\t%s\n", query.Escape(strings.Join(names, ", ")))
	}
	fmt.Fprintf(t, "  issuer\t%s\n", query.Escape(c.Issuer.String()))
	fmt.Fprintf(t, "  serial\t%x\n", c.SerialNumber)
	fmt.Fprintf(t, "  valid\t%s to %s, %s\n", c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339), timeLeft(c, now))
	return t.Flush()
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
