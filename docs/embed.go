// Package docs has the pages that the program prints.
package docs

import _ "embed" // the pages

// Example is a configuration with every setting, its meaning and its default.
//
//go:embed kvfs.example.yaml
var Example []byte
