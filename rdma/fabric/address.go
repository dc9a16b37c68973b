//go:build ofi && cgo

package fabric

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/rdma"
)

// addrVersion is the beginning of an address.
const addrVersion = "fabric1"

const (
	maxRailAddr = 128     // bytes of the address of one endpoint
	maxAddr     = 8 << 10 // bytes of Addr's result
)

// spot is an address in a node's memory, with its key on one rail.
type spot struct{ base, key uint64 }

// railAddr is the address of one rail of a node.
type railAddr struct {
	endpoint []byte
	words    spot // its table of words
}

// address is the parsed form of Addr's result.
type address struct {
	provider string // the library's name for it
	instance uint64 // the first word of the table
	format   uint32 // of the rails' addresses
	rails    []railAddr
}

// String is "fabric1/PROVIDER/INSTANCE/FORMAT/RAIL,RAIL,..."; a rail is
// "ADDRESS:BASE:KEY", in base64 and hexadecimal numbers.
func (a address) String() string {
	var rails []string
	for _, r := range a.rails {
		rails = append(rails, fmt.Sprintf("%s:%x:%x", base64.RawURLEncoding.EncodeToString(r.endpoint), r.words.base, r.words.key))
	}
	return fmt.Sprintf("%s/%s/%x/%x/%s", addrVersion, a.provider, a.instance, a.format, strings.Join(rails, ","))
}

// parseAddress reads the result of String. It comes from a peer.
func parseAddress(s string) (address, error) {
	var a address
	if len(s) > maxAddr {
		return a, fmt.Errorf("address of %d bytes, %d is the limit", len(s), maxAddr)
	}
	parts := strings.Split(s, "/")
	if len(parts) != 5 || parts[0] != addrVersion || parts[1] == "" {
		return a, fmt.Errorf("address %q does not have 5 parts, the first of them %s", s, addrVersion)
	}
	a.provider = parts[1]
	format, err := parseHex(parts[3], 32)
	if err != nil {
		return a, fmt.Errorf("address %q: %w", s, err)
	}
	a.format = uint32(format)
	if a.instance, err = parseHex(parts[2], 64); err != nil {
		return a, fmt.Errorf("address %q: %w", s, err)
	}
	for rail := range strings.SplitSeq(parts[4], ",") {
		r, err := parseRail(rail)
		if err != nil {
			return a, fmt.Errorf("address %q: rail %d: %w", s, len(a.rails), err)
		}
		if a.rails = append(a.rails, r); len(a.rails) > MaxRails {
			return a, fmt.Errorf("address of more than %d rails", MaxRails)
		}
	}
	return a, nil
}

func parseRail(s string) (railAddr, error) {
	var r railAddr
	fields := strings.Split(s, ":")
	if len(fields) != 3 {
		return r, fmt.Errorf("%d fields in place of 3", len(fields))
	}
	var err error
	if r.endpoint, err = base64.RawURLEncoding.DecodeString(fields[0]); err != nil {
		return r, err
	}
	if len(r.endpoint) == 0 || len(r.endpoint) > maxRailAddr {
		return r, fmt.Errorf("endpoint's address of %d bytes", len(r.endpoint))
	}
	if r.words.base, err = parseHex(fields[1], 64); err != nil {
		return r, err
	}
	r.words.key, err = parseHex(fields[2], 64)
	return r, err
}

// parseHex accepts only digits.
func parseHex(s string, bits int) (uint64, error) { return strconv.ParseUint(s, 16, bits) }

// keyVersion is the first byte of a key.
const keyVersion = 1

// keyHead is the length of a key without its spots.
const keyHead = 2 + 4 + 8

// regionKey is the content of RemoteRegion.Key.
type regionKey struct {
	slot  uint32 // of the holder's table of words,
	token uint64 // the word in that slot while the region is open
	spots []spot // addresses of its bytes, by rail of the holder
}

// encode returns version, number of rails, slot, token, and base and key by rail,
// little-endian.
func (k regionKey) encode() []byte {
	b := make([]byte, 0, keyHead+16*len(k.spots))
	b = append(b, keyVersion, byte(len(k.spots)))
	b = binary.LittleEndian.AppendUint32(b, k.slot)
	b = binary.LittleEndian.AppendUint64(b, k.token)
	for _, s := range k.spots {
		b = binary.LittleEndian.AppendUint64(b, s.base)
		b = binary.LittleEndian.AppendUint64(b, s.key)
	}
	return b
}

// parseKey reads the result of encode, from a peer with this many rails.
func parseKey(b []byte, rails int) (regionKey, error) {
	var k regionKey
	if len(b) < keyHead || len(b) > rdma.MaxKey || b[0] != keyVersion || int(b[1]) != rails || len(b) != keyHead+16*rails {
		return k, fmt.Errorf("%w: key of %d bytes for %d rails", rdma.ErrProtocol, len(b), rails)
	}
	k.slot = binary.LittleEndian.Uint32(b[2:])
	k.token = binary.LittleEndian.Uint64(b[6:])
	if k.slot == 0 || k.slot >= tableSlots || k.token == 0 {
		return k, fmt.Errorf("%w: key with slot %d", rdma.ErrProtocol, k.slot)
	}
	for b = b[keyHead:]; len(b) > 0; b = b[16:] {
		k.spots = append(k.spots, spot{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])})
	}
	return k, nil
}
