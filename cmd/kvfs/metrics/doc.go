// Package metrics is what a daemon tells Prometheus.
//
//	Snapshot    the numbers of one moment; package daemon fills it
//	Collector   makes metrics of a Snapshot, by one table (tables.go)
//	Page        the metrics as text, collected at most once at a time
//
// Names are kvfs_<part>_<noun>_<unit>, and those of counters end in _total. The values of labels are bounded: tiers,
// reasons, rules and operations are few, and of the groups only the largest have names (maxGroups).
package metrics
