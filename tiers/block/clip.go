package block

import "unicode/utf8"

// Clip returns the beginning of a text, at most limit bytes, cut between characters.
func Clip[T ~string | ~[]byte](text T, limit int) T {
	if len(text) <= limit {
		return text
	}
	for end := limit; end >= 0 && end > limit-utf8.UTFMax; end-- {
		if utf8.RuneStart(text[end]) {
			return text[:end]
		}
	}
	return text[:limit] // it is not UTF-8
}

// Shorten returns a text of at most limit bytes. A text that was cut ends in three dots. limit is
// at least 3.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return Clip(text, limit-len("...")) + "..."
}

// Shown is how many bytes of a wrong name or value an error repeats, with the dots after it.
const Shown = 64 + len("...")
