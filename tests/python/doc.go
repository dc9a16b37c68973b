// Package python runs what is written in Python against real daemons: the tests of
// the client in clients/python, and a subscriber of the events for routers that shares
// no code with kvfs.
//
// The client needs Python 3.8 or newer. The subscriber needs pyzmq and msgpack, as
// Debian packages them (python3-zmq, python3-msgpack). What is missing is a reason to
// skip.
//
// Each test of Python is a subtest here: run.py prints what became of it.
package python
