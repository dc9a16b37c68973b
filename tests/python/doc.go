// Package python runs Python programs against real daemons: the tests of the client in clients/python, and a
// subscriber of the events for routers that shares no code with kvfs.
//
// The client needs Python 3.8 or newer. The subscriber needs pyzmq and msgpack, as Debian packages them (python3-zmq,
// python3-msgpack). Without them its tests are skipped.
//
// Each test of Python is a subtest here: run.py prints the results.
package python
