package block

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// UserAttrs are the extended attributes that processes gave a version of a file: those named user.*, but for user.kvfs.*.
// It is the encoding itself, and constant. Empty: there are none. Each attribute is
//
//	1  length of the name
//	2  length of the value, little endian
//	   name, value
//
// in the order in which they were set last.
type UserAttrs string

// MaxUserAttrs bounds UserAttrs, in bytes.
const MaxUserAttrs = 4096

const userFixed = 3 // of an attribute, before the name

// The errors of UserAttrs.Set and Remove.
var (
	// ErrNoAttr: there is no attribute of that name.
	ErrNoAttr = errors.New("no such attribute")
	// ErrAttrSize: the value is larger than all attributes may be.
	ErrAttrSize = errors.New("attribute too large")
)

// SetMode says which attributes Set may set.
type SetMode uint8

// What Set does with a name that is there, or not.
const (
	SetAny     SetMode = iota
	SetCreate          // fail with ErrExist if it is there
	SetReplace         // fail with ErrNoAttr unless it is there
)

// next returns the first attribute, and what follows it. ok is false if the encoding ends, or makes no sense.
func (u UserAttrs) next() (name, value string, rest UserAttrs, ok bool) {
	if len(u) < userFixed {
		return "", "", "", false
	}
	n, v := int(u[0]), int(u[1])|int(u[2])<<8
	if n == 0 || len(u) < userFixed+n+v {
		return "", "", "", false
	}
	end := userFixed + n
	return string(u[userFixed:end]), string(u[end : end+v]), u[end+v:], true
}

// Get returns the value of an attribute.
func (u UserAttrs) Get(name string) (value string, ok bool) {
	for n, v, rest, more := u.next(); more; n, v, rest, more = rest.next() {
		if n == name {
			return v, true
		}
	}
	return "", false
}

// Names returns the names of the attributes, each with a zero byte behind it, as listxattr does.
func (u UserAttrs) Names() string {
	var b strings.Builder
	for n, _, rest, more := u.next(); more; n, _, rest, more = rest.next() {
		b.WriteString(n)
		b.WriteByte(0)
	}
	return b.String()
}

// Set returns u with an attribute set. It fails with ErrAttrSize, with ErrNoSpace if there would be more than MaxUserAttrs, and
// as mode says.
func (u UserAttrs) Set(name, value string, mode SetMode) (UserAttrs, error) {
	left, err := u.Remove(name)
	switch {
	case name == "" || len(name) > MaxName:
		return u, ErrInvalid
	case len(value) > MaxUserAttrs:
		return u, ErrAttrSize
	case mode == SetCreate && err == nil:
		return u, ErrExist
	case mode == SetReplace && err != nil:
		return u, err
	case len(left)+userFixed+len(name)+len(value) > MaxUserAttrs:
		return u, ErrNoSpace
	}
	b := binary.LittleEndian.AppendUint16([]byte{byte(len(name))}, uint16(len(value)))
	return left + UserAttrs(b) + UserAttrs(name) + UserAttrs(value), nil
}

// Remove returns u without an attribute. It fails with ErrNoAttr.
func (u UserAttrs) Remove(name string) (UserAttrs, error) {
	for at := u; ; {
		n, _, rest, ok := at.next()
		if !ok {
			return u, ErrNoAttr
		}
		if n == name {
			return u[:len(u)-len(at)] + rest, nil
		}
		at = rest
	}
}

// Check fails with ErrCorrupt unless u is an encoding.
func (u UserAttrs) Check() error {
	if u == "" {
		return nil
	}
	at, ok := u, len(u) <= MaxUserAttrs
	seen := make(map[string]bool)
	for ok && at != "" {
		var name string
		name, _, at, ok = at.next()
		ok = ok && !seen[name] && !strings.Contains(name, "\x00")
		seen[name] = true
	}
	if !ok {
		return fmt.Errorf("attributes of %d bytes: %w", len(u), ErrCorrupt)
	}
	return nil
}
