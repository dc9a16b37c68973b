package launch

import "strings"

// plain are the characters that mean nothing to a shell.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_"

// Quote returns words as a line that a POSIX shell splits into them again.
func Quote(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		if word == "" || strings.Trim(word, plain) != "" || i == 0 && assignmentForm.MatchString(word) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		quoted[i] = word
	}
	return strings.Join(quoted, " ")
}

// splitScript splits the text of a shell into the words of one command. It
// reports false for anything but plain words and quotes that nothing is expanded
// in.
func splitScript(text string) (words []string, simple bool) {
	var word strings.Builder
	in := false // a word, be it empty
	end := func() {
		if in {
			words = append(words, word.String())
			word.Reset()
			in = false
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == ' ' || c == '\t':
			end()
		case c == '\'' || c == '"':
			n := strings.IndexByte(text[i+1:], c)
			if n < 0 || c == '"' && strings.ContainsAny(text[i+1:i+1+n], "$`\\!") {
				return nil, false
			}
			word.WriteString(text[i+1 : i+1+n])
			in = true
			i += n + 1
		case strings.IndexByte(plain, c) >= 0:
			word.WriteByte(c)
			in = true
		default:
			return nil, false
		}
	}
	end()
	return words, len(words) > 0
}
