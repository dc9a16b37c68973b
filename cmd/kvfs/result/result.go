// Package result prints what a command has found or done: as text, or with --json as JSON.
package result

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// WithJSON adds --json to a command whose result is in its output.
func WithJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Bool("json", false, "print the result as JSON")
	return cmd
}

// WantsJSON reports whether --json is given.
func WantsJSON(cmd *cobra.Command) bool { return cmd.Flag("json").Value.String() == "true" }

// Print prints the result of a command: v with --json, else the text.
func Print(cmd *cobra.Command, v any, format string, args ...any) error {
	if WantsJSON(cmd) {
		return show.JSON(cmd.OutOrStdout(), v)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format, args...)
	return err
}
