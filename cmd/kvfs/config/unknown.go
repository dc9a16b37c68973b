package config

import (
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

const (
	bucketTier = "a bucket is a tier: write tiers: [{type: object, url: s3://BUCKET/PREFIX}]"
	pathOfSSD  = "each directory of the SSD tier has its own: write disk: {dirs: [{path: DIR, size: SIZE}]}"
	ofPeers    = "the addresses of peers are the settings bind and join"
	mountPoint = "the mount point is an argument: kvfs mount DIR"
)

// meant are keys that people write for what has another form here, and what to write.
var meant = map[string]string{
	"object": bucketTier, "s3": bucketTier, "bucket": bucketTier,
	"disk.path": pathOfSSD, "disk.size": pathOfSSD, "disk.dir": pathOfSSD, "ssd": pathOfSSD, "nvme": pathOfSSD,
	"peers": ofPeers, "cluster": ofPeers,
	"mount.dir": mountPoint, "mount.path": mountPoint, "mount_point": mountPoint, "mountpoint": mountPoint,
}

// unknownKey is the violation for a key that section s, at path, lacks.
func unknownKey(key string, s *setting, path string) error {
	full := join(path, key)
	if instead, is := meant[full]; is {
		return scalar.Violate(scalar.ErrUnknown, "unknown key %q: %s", full, instead)
	}
	if path == "" && strings.Contains(key, ".") && lookupAny(key) {
		at, last := key[:strings.LastIndex(key, ".")], key[strings.LastIndex(key, ".")+1:]
		return scalar.Violate(scalar.ErrUnknown, "unknown key %q: write it as a section: %s: {%s: ...}", key, strings.ReplaceAll(at, ".", ": {"), last)
	}
	candidates := make([]string, 0, len(s.settings))
	for _, child := range s.settings {
		candidates = append(candidates, join(path, child.key))
	}
	if near := Nearest(full, candidates); near != "" {
		return scalar.Violate(scalar.ErrUnknown, "unknown key %q; did you mean %q?", full, near)
	}
	if other := elsewhere(key, full); other != "" {
		return scalar.Violate(scalar.ErrUnknown, "unknown key %q; did you mean %q?", full, other)
	}
	return scalar.Violate(scalar.ErrUnknown, "unknown key %q; known here: %s", full, strings.Join(s.keys(), ", "))
}

// elsewhere returns the setting that is meant by a right key in a wrong place, or by a path written with other separators:
// the one nearest to the top.
func elsewhere(key, full string) (best string) {
	depth := func(path string) int { return strings.Count(path, ".") }
	for _, t := range textSettings() {
		if (t.key == key || sameName(t.path, full) || sameName(t.path, key)) && (best == "" || depth(t.path) < depth(best)) {
			best = t.path
		}
	}
	return best
}

// lookupAny reports whether a path is that of a setting.
func lookupAny(path string) bool {
	return slices.ContainsFunc(textSettings(), func(t *textSetting) bool { return t.path == path })
}

// sameName compares two paths without regard to separators and case.
func sameName(a, b string) bool {
	fold := strings.NewReplacer(".", "", "_", "", "-", "")
	return strings.EqualFold(fold.Replace(a), fold.Replace(b))
}

// Nearest returns the candidate that a typing error may have turned into name,
// or "".
func Nearest(name string, candidates []string) string {
	best, bestDistance := "", min(2, len(name)/3)+1
	for _, c := range candidates {
		if sameName(name, c) {
			return c
		}
		if d := distance(name, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance of two short strings, in bytes. Long ones
// are far from everything.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = slices.Min([]int{cost, row[j] + 1, row[j+1] + 1})
		}
	}
	return row[len(b)]
}

// Suggest returns the flag or variable that is meant by a name that is none, or "": one with a typing error, the end of one
// (because people remember --size: that of the memory tier, else the shortest), one with a section too many, or the first
// words of one.
func Suggest(name string, names []string) string {
	if near := Nearest(name, names); near != "" {
		return near
	}
	fold := func(name string) string {
		return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "_", "-")
	}
	name = fold(name)
	best, bestRank := "", 0
	for _, n := range names {
		f, rank := fold(n), 0
		switch {
		case f == "memory-"+name, f == "memory-size" && name == "memory":
			rank = 4000
		case strings.HasSuffix(f, "-"+name):
			rank = 3000 - len(f)
		case strings.HasSuffix(name, "-"+f):
			rank = 2000 + len(f)
		case strings.HasPrefix(name, f+"-"):
			rank = 1000 + len(f)
		}
		if rank > bestRank {
			best, bestRank = n, rank
		}
	}
	return best
}
