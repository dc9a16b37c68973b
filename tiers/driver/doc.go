// Package driver defines the interfaces of the levels of storage, which their implementations provide and
// package tiers uses, as database/sql/driver does for databases:
//
//	Primary   tier 0: files in memory that the kernel can serve by itself
//	Tier      a secondary tier: batched, asynchronous, one result a job
//	Remote    a Tier of blocks that other nodes have
//	Finder    the ability to have blocks that were never listed
//	Host      what the engine does for a Tier
//	Registry  the types of tiers that a configuration may list
//
// A Tier has the methods that each tier needs. What only some can do is an interface of its own, and a
// tier without it has a documented default: Asker, Statser, Enumerator, Finder, Hosted,
// Recorder, Syncer.
//
// Primary and Tier are two interfaces because they are two jobs. The primary keeps files that clients read
// and write directly, and is told what to do. A secondary tier moves whole blocks and decides for itself.
// vLLM draws the line in the same place: the CPU manager against SecondaryTierManager.
//
// tiers/tiertest has the reference implementation and the conformance suites of both.
package driver
