// Package top is the full-screen view of a mount, kvfs top.
//
//	Reader   reads a Frame: the status, the rates since the last one, latencies, events
//	Model    the state of the view; its Update and View have no effects (model.go)
//	body     the lines of a Frame (view.go)
//
// The Model keeps the lines and shows as many as the terminal has. Names come escaped, so that a terminal only shows them.
package top
