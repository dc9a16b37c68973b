package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker: -ldflags "-X main.version=v1.2.3". Empty means
// what the build recorded.
var version string

// versionString returns the version of this build: the linker's, else that of
// the main module ("v1.2.3", or a pseudo-version), else "devel".
func versionString() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

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
	return fmt.Sprintf("kvfs %s (%s %s/%s%s)", versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH, revision())
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}
