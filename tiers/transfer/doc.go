// Package transfer moves blocks between memory and the tiers below it. It copies blocks down, keeps and removes the copies, waits until
// they are durable, and brings blocks back into memory.
//
// It owns the promotions, which are the loads under way. An entry has one at most. It is the owner of the lanes (package
// lane) and the host of the tiers (driver.Host). Of files being written it knows what state.WriteSide says.
package transfer
