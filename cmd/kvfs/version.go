package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// version is the newest section of CHANGELOG.md; the tests compare the two. The
// linker replaces it: -ldflags "-X main.version=v1.2.3".
var version = "v0.1.0"

// revision returns the commit that was built, "" if the build did not record it.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	commit, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " modified"
		}
	}
	if commit == "" {
		return ""
	}
	return " " + commit + modified
}

// versionLine returns "kvfs <version> (<go version> <os>/<arch> <commit>)".
func versionLine() string {
	return fmt.Sprintf("kvfs %s (%s %s/%s%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, revision())
}

func newVersionCommand() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "version [--json]",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if raw {
				return show.JSON(cmd.OutOrStdout(), map[string]string{
					"version": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "revision": strings.TrimSpace(revision()),
				})
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print it as JSON")
	return cmd
}

func thisProgram() daemon.Program { return daemon.Program{Version: version} }
