package tiers

import (
	"errors"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// UserAttrs returns the attributes of processes that a file has. Those of a block that only other nodes or a Finder have
// come with its bytes, so UserAttrs waits for these. It fails as a promotion does.
func (e *Engine) UserAttrs(id index.ID) (block.UserAttrs, error) {
	for tries := 0; ; tries++ {
		e.st.Mu.Lock()
		en := e.st.Mu.Ix.At(id)
		user, nonresident := e.st.Mu.UserAttrs(id, en), en.Flags()&index.FlagUnread != 0 && e.st.NonresidentLocked(id, en)
		e.st.Mu.Unlock()
		if !nonresident {
			return user, nil
		}
		release, err := e.hold("getxattr", id, tries)
		if err != nil {
			return "", err
		}
		release()
	}
}

// KnownUserAttrs is UserAttrs without a wait: empty if they are not known.
func (e *Engine) KnownUserAttrs(id index.ID) block.UserAttrs {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	return e.st.Mu.UserAttrs(id, e.st.Mu.Ix.At(id))
}

// SetUserAttrs replaces the attributes of processes of a file by what fn makes of them. It brings a block to memory first. It
// fails as that or fn does, and with ErrIsDir for a directory.
func (e *Engine) SetUserAttrs(id index.ID, fn func(block.UserAttrs) (block.UserAttrs, error)) error {
	if e.isDir(id) {
		return block.ErrIsDir
	}
	for tries := 0; ; tries++ {
		err := e.Files.SetUserAttrs(id, fn)
		if !errors.Is(err, state.ErrStale) {
			return err
		}
		release, err := e.hold("setxattr", id, tries)
		if err != nil {
			return err
		}
		defer release()
	}
}

// hold brings a block to memory, where it stays until it is released. It did not if the block has changed meanwhile: then
// the next try shows what it is now.
func (e *Engine) hold(op string, id index.ID, tries int) (release func(), err error) {
	switch err := e.Promote(e.st.Ctx, id, transfer.Want{}); {
	case err == nil:
		return func() { e.CloseRead(id) }, nil
	case !errors.Is(err, state.ErrStale) || tries == ownTries:
		return nil, state.BringError(op, err)
	}
	return func() {}, nil
}
