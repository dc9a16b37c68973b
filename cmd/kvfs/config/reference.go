package config

import (
	"bytes"
	"fmt"
	"strings"
)

// Reference returns the reference page in Markdown.
func Reference() []byte {
	var b bytes.Buffer
	b.WriteString(referenceIntro)
	b.WriteString("\n## Settings\n")
	referenceSection(&b, schema(), "Top level")
	referenceRetired(&b)
	referenceAliases(&b)
	b.WriteString("\n## Other environment variables\n\n")
	b.WriteString("These are not settings, and kvfs never refuses them:\n\n| Variable | For |\n|---|---|\n")
	for _, f := range foreign {
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.name, f.help)
	}
	b.WriteString("| `KVFS_SERVICE_HOST`, `KVFS_PORT_...` and the like | variables that Kubernetes sets in every pod for a service whose name begins with kvfs |\n")
	b.WriteString("\nAny other variable that begins with `KVFS_` is an error.\n")
	return b.Bytes()
}

// referenceRetired writes the settings that became constants.
func referenceRetired(b *bytes.Buffer) {
	b.WriteString("\n## Constants\n\nThese were settings once. kvfs accepts and ignores them, and logs one warning for each:\n\n")
	b.WriteString("| Key | Value | Meaning |\n|---|---|---|\n")
	for _, s := range retired {
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", s.path, s.def, s.help)
	}
}

// referenceAliases writes the variables of other programs.
func referenceAliases(b *bytes.Buffer) {
	b.WriteString(aliasesIntro)
	b.WriteString("| Alias | Setting | Remarks |\n|---|---|---|\n")
	for _, a := range aliases {
		setting := "`" + a.path + "`"
		if a.part == partEnabled {
			setting += ", whether there is one"
		} else if a.part != "" {
			setting += ", its " + a.part
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", a.name, setting, a.remarks)
	}
	for _, s := range unmatched {
		fmt.Fprintf(b, "| `%s` | none | A warning: %s. |\n", s.name, s.instead)
	}
	for _, e := range engines {
		fmt.Fprintf(b, "| `%s` | none | %s |\n", e.name, e.remarks)
	}
}

// aliasesIntro explains the forms of aliases.
const aliasesIntro = `
## Aliases

Some variables of Mooncake and of engines mean the same as a setting, and count as its variable: they win over files and inline
JSON, and flags win over them. The setting's own variable (` + "`KVFS_...`" + `) wins over its aliases, an earlier row over a later one. The log
warns of each that is used or ignored, with the name to use instead.

They have the forms of the other program, except the names that begin with ` + "`KVFS_`" + `:

- **size**: a bare number is bytes. Units are ` + "`b kb mb gb tb`" + ` in any case, with or without a space, and are powers of 1024 here:
  ` + "`4gb`, `4 GB` and `4294967296` are `4GiB`" + `. A fraction of a byte is cut off.
- **bool**: the same words as elsewhere, in any case: ` + "`True`" + ` is fine, ` + "`2`" + ` is an error.

The SSD tier is on only if an alias turns it on. It then has one directory and needs a path and a size; without them it is an error, unless
` + "`disk.dirs`" + ` comes from another source. A path or a size alone is a warning.

`

// referenceIntro is what cannot be read from the struct.
const referenceIntro = `# Configuration

For operators who set more than the size: every key, its default, and where to set it. ` + "`kvfs config reference`" + ` generates this page;
` + "`kvfs config example`" + ` prints [kvfs.example.yaml](kvfs.example.yaml), a commented file to start from.

## Sources

From the lowest precedence to the highest:

1. defaults: one memory tier, everything else off
2. a file in YAML or JSON: ` + "`--config FILE`, else `KVFS_CONFIG`" + `
3. inline JSON: ` + "`--config-json JSON`, else `KVFS_CONFIG_JSON`" + `
4. environment: ` + "`KVFS_...`" + `
5. flags

Names follow a fixed rule: the variable of the flag ` + "`--memory-size` is `KVFS_MEMORY_SIZE`" + `. Each row shows four ways to set the same:

| File | Inline JSON | Environment | Flag |
|---|---|---|---|
| ` + "`memory: {size: 64GiB}` | `{\"memory\": {\"size\": \"64GiB\"}}` | `KVFS_MEMORY_SIZE=64GiB` | `--memory-size 64GiB`" + ` |
| ` + "`memory: {keep: true}` | `{\"memory\": {\"keep\": true}}` | `KVFS_MEMORY_KEEP=1` | `--memory-keep`" + ` |
| ` + "`http: 127.0.0.1:9100` | `{\"http\": \"127.0.0.1:9100\"}` | `KVFS_HTTP=127.0.0.1:9100` | `--http 127.0.0.1:9100`" + ` |
| ` + "`mount: {temp_patterns: [\"*.tmp\", \"tmp/\"]}` | `{\"mount\": {\"temp_patterns\": [\"*.tmp\", \"tmp/\"]}}` | `KVFS_MOUNT_TEMP_PATTERNS='*.tmp,tmp/'` | `--mount-temp-patterns '*.tmp,tmp/'`" + ` |
| ` + "`disk: {dirs: [{path: /mnt/a, size: 100GiB}]}` | `{\"disk\": {\"dirs\": [{\"path\": \"/mnt/a\", \"size\": \"100GiB\"}]}}` | `KVFS_DISK='path=/mnt/a,size=100GiB'` | `--disk path=/mnt/a,size=100GiB`" + ` |

One name is shorter than its path: ` + "`disk.dirs` is `KVFS_DISK` and `--disk`" + `. Separate several directories by ` + "`;`" + ` in the
environment, or repeat ` + "`--disk`" + `.

Sections, groups and specs merge key by key. A list replaces the whole list of a lower source. ` + "`version: 1`" + ` in a file or inline JSON
names its form; it is the default, and any other is an error.

` + "`kvfs mount --help`" + ` shows the common flags, ` + "`--help-all`" + ` those of all settings. ` + "`kvfs config check`" + ` reads all sources and reports
every error with its place, key, value and remedy. It also checks, as [` + "`kvfs doctor`" + `](operations.md#doctor) does, whether the settings fit
this machine; ` + "`--elsewhere`" + ` skips that. ` + "`kvfs config print`" + ` shows the values in effect, and where each comes from.

## Values

- **size**: a number and a unit, ` + "`B KiB MiB GiB TiB`" + ` (powers of 1024) or ` + "`KB MB GB TB`" + ` (powers of 1000). A bare number is an
  error; only ` + "`0`" + ` needs no unit.
- **duration**: ` + "`250ms`, `5s`, `1m30s`, `1h`" + `. A bare number is an error; only ` + "`0`" + ` needs no unit.
- **bool**: in files ` + "`true` or `false`" + ` without quotes. In the environment and as a flag ` + "`1 0 true false yes no on off`" + `, nothing
  else.
- **text** of any kind is trimmed. Empty, or null in a file, means not set.

## Errors

Reading is strict. Errors are: unknown and duplicate keys, a second document, a wrong type, a missing unit, a value out of range, an
unknown ` + "`KVFS_`" + ` variable. kvfs reports all errors at once, each with file and line, variable or flag, mounts nothing, and ends with code 3.
`

// referenceSection writes the table of one section, then those of its sections.
func referenceSection(b *bytes.Buffer, s *setting, title string) {
	fmt.Fprintf(b, "\n### %s\n\n", title)
	if s.help != "" {
		fmt.Fprintf(b, "%s\n\n", describeSetting(s))
	}
	if s.shape == list && s.textual() {
		fmt.Fprintf(b, "Environment `%s`, flag `--%s %s`.\n\n", s.env(), s.flag(), s.typeName())
	}
	b.WriteString("| Key | Type | Default | Flag | Meaning |\n|---|---|---|---|---|\n")
	for _, child := range s.settings {
		if child.shape == leaf {
			referenceRow(b, child)
		}
	}
	for _, child := range s.settings {
		if child.shape != leaf {
			referenceSection(b, child, "`"+child.path+"`")
		}
	}
}

// listOf says that a setting holds any number of values.
func listOf(s *setting) string {
	if s.repeated() {
		return "list of "
	}
	return ""
}

// referenceRow writes one setting.
func referenceRow(b *bytes.Buffer, s *setting) {
	def, flag := "`"+s.def+"`", ""
	switch {
	case s.auto != "":
		def = s.auto
	case s.required:
		def = "required"
	case s.def == "":
		def = "none"
	}
	if s.textual() {
		flag = "`--" + s.flag() + "`"
	}
	typ := s.typeName()
	if s.enum != nil {
		typ = listOf(s) + "`" + strings.Join(s.enum, "` `") + "`"
	}
	help := s.help
	if bounds := s.bounds(); bounds != "" {
		help += " Range: " + bounds + "."
	}
	fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", s.path, typ, def, flag, help)
}
