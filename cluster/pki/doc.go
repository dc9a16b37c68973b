// Package pki makes and loads the certificates with which nodes know each other.
//
// A cluster has one certificate authority (CreateCA). Each node has a certificate of
// it (Issue) that carries "<name>.kvfs" as a DNS name and may be used on both ends
// of a connection. A node shows it on every connection and takes one only from
// somebody with a certificate of the same CA (Loader.Server, Loader.Client).
//
// # Rotation
//
// Loader.Watch takes over changed files, so nothing here needs a restart. What is
// loaded counts from the next handshake on; connections that are open go on. The
// file of the CA may hold several certificates, all of which are trusted: a new CA
// is added to it on all nodes, then the certificates are replaced, then the old
// CA goes.
//
// # Time
//
// Certificates count from an hour before they are made, so that nodes whose clocks
// differ by that much take each other's.
package pki
