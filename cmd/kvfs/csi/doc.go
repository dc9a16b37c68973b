// Package csi is the node's part of a CSI driver: Kubernetes asks it over gRPC to mount the blocks of a store, kvfs serve,
// at a directory of a pod, and to unmount them.
//
// Volumes are ephemeral inline ones and static ones; there is nothing to create, so there is no controller service. All
// volumes of a store show the same blocks.
//
// # Who holds the mounts
//
// This process mounts and hands the descriptors to the owner of the store, which serves the mount
// (package handoff). Both have the descriptors, so a mount stays when either of them ends: the owner
// keeps those of a driver that is gone, and the next driver resumes what it finds in the mount table; a
// driver hands its mounts to the next owner. What both have left at one time is lost: the mount answers
// ENOTCONN. So each waits for the other before it stops.
//
// The mount table is the only state. The first column of a mount is "csi:" and the id of the volume.
package csi
