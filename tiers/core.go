package tiers

import "github.com/kvfs/kvfs/tiers/state"

// core is the part that the rooms of an Engine share: the rooms themselves, and the state.
type core struct {
	*state.State

	names     *names
	lookups   *lookups
	verdicts  *verdicts
	report    *report
	attrs     *attrs
	opens     *opens
	drafts    *drafts
	renames   *renames
	loads     *loads
	copies    *copies
	space     *space
	elsewhere *elsewhere
	lending   *lending
}
