package query

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// appendHex appends bytes in lower-case hexadecimal. It converts four bytes at a time, as eight
// half-bytes in one word. A hash of 32 bytes takes 17 ns. Package hex takes 30 ns to 60 ns, which
// was most of the time of a binary request.
func appendHex(dst, src []byte) []byte {
	start := len(dst)
	dst = slices.Grow(dst, 2*len(src))[:start+len(src)/4*8]
	for text := dst[start:]; len(text) >= 8; src, text = src[4:], text[8:] {
		w := uint64(binary.LittleEndian.Uint32(src))
		// Each byte moves into a lane of two. Its upper half then moves into the lower byte of the
		// lane, which is the first in memory.
		w = (w | w<<16) & 0x0000ffff_0000ffff
		w = (w | w<<8) & 0x00ff00ff_00ff00ff
		w = w>>4&0x000f000f_000f000f | w&0x000f000f_000f000f<<8
		letters := (w + 0x06060606_06060606) >> 4 & 0x01010101_01010101 // where the digit is above 9
		binary.LittleEndian.PutUint64(text, w+0x30303030_30303030+letters*('a'-'0'-10))
	}
	return hex.AppendEncode(dst, src)
}
