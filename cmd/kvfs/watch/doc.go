// Package watch is how the numbers of a mount change, for people who look on: kvfs stats, du and top.
//
//	Sample   the status of a mount at one moment
//	Rates    what happened between two samples, per second, and what is so at the later one
//	Lines    prints Rates as lines or JSON, one for each interval
//	Usage    who uses how much of which tier
package watch
