// Package harness starts real kvfs daemons for black-box tests, and the other processes that such tests need.
//
// Mount starts `kvfs mount` as a child and waits until it is ready. The mount, its memory tier and the daemon go away
// with the test. Serve starts `kvfs serve`, to which mounts attach. Kvfs runs any other command. An Actor is a second
// process that does file operations on request. It sees files as another engine would, and it can be killed in the
// middle of a write.
//
// A test package that uses Actors or Helpers has a TestMain:
//
//	func TestMain(m *testing.M) {
//		harness.Helper("slow-writer", slowWriter)
//		os.Exit(harness.Main(m))
//	}
//
// # Environment
//
//	KVFS_BIN             the binary to test; by default ./cmd/kvfs is built
//	KVFS_TEST_DISK       a directory on a disk, for disk tiers; by default TMPDIR,
//	                     or /var/tmp if that is in memory
//	KVFS_TEST_REFERENCE  1: Mount gives a plain tmpfs directory instead, to
//	                     check the tests themselves against Linux
//
// Tests that cannot run call Skip. Skip counts them, and Main prints the sum.
package harness
